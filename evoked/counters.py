"""The one registry of counters: status, metrics text and tests read the same numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

__all__ = ["Counters"]

# name -> help; a name outside this table is a defect and asserts
HELP: Final[dict[str, str]] = {
    "requests": "requests read from the control socket",
    "refused_requests": "requests answered with an error code",
    "bad_frames": "frames that were no message of the protocol",
    "bad_tokens": "requests without a session, or from another peer than the session's",
    "rate_limited": "requests answered busy",
    "replies_dropped": "replies that could not be queued; the session was ended",
    "sessions_opened": "liveness connections accepted",
    "sessions_refused": "liveness connections refused",
    "sessions_ended": "sessions ended, for whatever reason",
    "blocks_stored": "blocks committed",
    "blocks_present": "blocks offered that were present before",
    "blocks_refused": "blocks refused for want of room",
    "blocks_fetched": "blocks copied back to an engine",
    "blocks_missed": "blocks asked by fetch that were absent",
    "blocks_evicted": "blocks that left to make room",
    "blocks_flushed": "blocks removed on request",
    "blocks_late": "blocks not copied before their deadline, or given up by the client",
    "blocks_dropped": "incomplete or orphaned blocks dropped before they were visible",
    "bytes_stored": "bytes committed",
    "bytes_fetched": "bytes copied back to engines",
    "integrity_failures": "blocks whose bytes did not have their checksum",
    "peer_faults": "copies that faulted in a peer's memory",
    "grants_made": "reservations and pins granted",
    "grants_expired": "grants ended by their deadline",
    "bad_grants": "releases of a grant that was released, forged, foreign or expired",
    "tenant_refusals": "requests answered busy for a quota of their tenant",
    "asked": "blocks that engines looked up",
    "hit_host": "of these, found in host DRAM",
    "hit_cxl": "of these, found in CXL DRAM",
    "hit_flash": "of these, found on flash",
    "missed": "of these, absent",
    "flash_blocks_written": "blocks written to flash",
    "flash_blocks_read": "blocks read from flash",
    "flash_blocks_evicted": "blocks that left flash to make room there",
    "flash_bytes_written": "bytes of blocks written to flash",
    "flash_bytes_read": "bytes of blocks read from flash",
    "flash_refused": "blocks not written to flash: used too seldom",
    "flash_over_budget": "blocks not written to flash: the write budget was used up",
    "flash_errors": "reads and writes of flash that failed",
    "flash_late": "reads and writes of flash that missed their deadline",
    "flash_degraded": "times that a flash directory became degraded",
    "unknown": "of these, not attributable (gone before the report came)",
    "observed_reports": "reports of attention taken",
    "reports_repeated": "reports of a request that had been reported before",
    "defects": "requests that met a defect of the daemon",
    "replies_held": "replies kept back for a peer that had to connect again",
    "learned_failed": "times that what the policy learned could not be saved",
    "policy_reloads": "policies put into force since start",
    "policy_refused": "policies refused at a reload, with a reason; nothing changed",
    "policy_reverts": "policies of users that failed and gave way to the last good one",
    "socket_rebinds": "control socket closed and bound again for its memory",
}


class Counters(Counter[str]):
    """Counts since start, by the names of HELP."""

    def __init__(self) -> None:
        super().__init__()
        for name in HELP:
            self[name] = 0

    def add(self, name: str, count: int = 1) -> None:
        assert name in HELP, name
        self[name] += count

    def some(self, names: Iterable[str]) -> dict[str, int]:
        return {name: self[name] for name in names}
