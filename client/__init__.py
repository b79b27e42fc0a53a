"""evoke.client: what a model runner imports."""
