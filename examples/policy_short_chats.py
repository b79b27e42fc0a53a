"""A policy of your own: blocks that were used once leave before all others, the oldest first.

Try it on a trace, then in the daemon (docs/policy-authors.md):

    evokectl simulate TRACE --policy file:examples/policy_short_chats.py --capacity 5%
    evokectl policy reload mine.toml        # [priority] formula = "file:policy_short_chats.py"
"""

import numpy as np
from numpy.typing import NDArray

from evoke.policy.users import Blocks


class Policy:
    """once_idle: after how many clock units a block that was used once counts as old."""

    def __init__(self, once_idle: float = 10.0) -> None:
        if once_idle < 0:
            raise ValueError(f"once_idle: {once_idle} is below 0")
        self.once_idle = once_idle

    def rank(self, blocks: Blocks) -> NDArray[np.float64]:
        """One number for each block; the lowest leaves first."""
        old_and_used_once = (blocks.count == 1) & (blocks.idle > self.once_idle)
        ranks: NDArray[np.float64] = blocks.log_score - 1000.0 * old_and_used_once
        return ranks
