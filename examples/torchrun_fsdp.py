"""FSDP2: shard the whole objective; bfloat16 in the network, gradients of two batches at a time.

torchrun --nproc-per-node 2 examples/torchrun_fsdp.py checkpoints
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from elliptica import Elliptic, GradientNorm
from elliptica.distributed import load_checkpoint, rank_generator, save_checkpoint

ACCUMULATE = 2


def main(folder: str, epochs: int = 5) -> None:
    dist.init_process_group("gloo")  # "nccl" on GPUs
    train(folder, epochs)
    dist.barrier()  # nobody leaves while another still talks
    dist.destroy_process_group()  # once the sharded objective is gone, which holds on to the group


def train(folder: str, epochs: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(256, 20)
    data = TensorDataset(x, x[:, :3].argmax(1))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))

    objective = Elliptic(model, nn.CrossEntropyLoss(), num_classes=3, weighting=GradientNorm(xi=0.1))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    sharded = fully_shard(objective, mp_policy=policy)  # as one unit: second derivatives need that
    optimizer = torch.optim.Adam(sharded.parameters(), lr=1e-2)  # after sharding
    noise = {"noise": rank_generator(0)}
    found = load_checkpoint(folder, sharded, optimizer, generators=noise)
    for epoch in range(found.step if found else 0, epochs):
        sampler.set_epoch(epoch)
        for number, (inputs, labels) in enumerate(loader, start=1):
            is_last = number % ACCUMULATE == 0 or number == len(loader)
            sharded.set_requires_gradient_sync(is_last)
            loss = sharded(inputs, labels, generator=noise["noise"])
            (loss / ACCUMULATE).backward()
            if is_last:
                optimizer.step()
                optimizer.zero_grad()
        save_checkpoint(folder, sharded, optimizer, step=epoch + 1, generators=noise)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss of the last batch {loss.item():.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:2] or ["checkpoints"], *map(int, sys.argv[2:]))
