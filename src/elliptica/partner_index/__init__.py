"""Draw partners among millions of rows: an index on disk, draws from the exact law, batches of pairs.

`PartnerTable` stores the law of every row and needs memory for every pair of rows. Here a row stores only its
nearest neighbours, and the rest of the law is drawn by rejection.
"""

from elliptica.partner_index.index import PartnerIndex as PartnerIndex
from elliptica.partner_index.law import LawCheck as LawCheck
from elliptica.partner_index.loader import PairBatchSampler as PairBatchSampler
from elliptica.partner_index.loader import split_pairs as split_pairs
