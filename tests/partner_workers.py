"""What loader workers and other processes run in partner_index/test_store."""

import torch
from torch.utils.data import Dataset

from elliptica.partner_index import PairBatchSampler, PartnerIndex


class Pairs(Dataset):
    """Draws the partners of a row in the worker that fetches it."""

    def __init__(self, index, n):
        self.index, self.n = index, n

    def __len__(self):
        return self.n

    def __getitem__(self, row):
        generator = torch.Generator().manual_seed(row)
        return row, self.index.sample(torch.tensor([row]), n_bridges=4, generator=generator)[0]


def rank_draws(rank, folder):
    """What a rank draws from the common folder, and its batches of pairs."""
    index = PartnerIndex.load(folder)
    drawn = index.sample(torch.arange(20), n_bridges=3, generator=torch.Generator().manual_seed(3))
    return drawn, list(PairBatchSampler(index, 7))
