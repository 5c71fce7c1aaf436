"""Draw partners among millions of rows: an index on disk, draws from the exact law, batches of pairs.

`PartnerTable` stores the law of every row and needs memory for every pair of rows. Here a row stores only its
nearest neighbours, and the rest of the law is drawn by rejection. Names are imported on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elliptica.partner_index.index import PartnerIndex as PartnerIndex
    from elliptica.partner_index.law import LawCheck as LawCheck
    from elliptica.partner_index.loader import PairBatchSampler as PairBatchSampler
    from elliptica.partner_index.loader import split_pairs as split_pairs
    from elliptica.partner_index.loader import swapped_partners as swapped_partners

_HOME = {
    "LawCheck": "law",
    "PairBatchSampler": "loader",
    "PartnerIndex": "index",
    "split_pairs": "loader",
    "swapped_partners": "loader",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"elliptica.partner_index.{_HOME[name]}"), name)
    raise AttributeError(f"module 'elliptica.partner_index' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
