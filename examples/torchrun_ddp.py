"""DDP: wrap the objective, give each process rows and noise of its own.

torchrun --nproc-per-node 2 examples/torchrun_ddp.py checkpoints
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from elliptica import Elliptic
from elliptica.distributed import load_checkpoint, over_global_batch, rank_generator, save_checkpoint


def main(folder: str, epochs: int = 5) -> None:
    dist.init_process_group("gloo")  # "nccl" on GPUs
    train(folder, epochs)
    dist.destroy_process_group()  # once the wrapper is gone: it could wait for the group for ever otherwise


def train(folder: str, epochs: int) -> None:
    torch.manual_seed(0)  # the same data and initial weights in all processes
    x = torch.randn(256, 20)
    data = TensorDataset(x, x[:, :3].argmax(1))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=16, sampler=sampler)  # 16 rows in each process
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))

    objective = Elliptic(model, nn.CrossEntropyLoss(), num_classes=3, weighting="gradient_softmax")
    objective = over_global_batch(objective)  # the softmax is over the rows of all processes
    wrapped = DistributedDataParallel(objective)
    optimizer = torch.optim.Adam(wrapped.parameters(), lr=1e-2)
    noise = {"noise": rank_generator(0)}  # another stream in every process
    found = load_checkpoint(folder, wrapped, optimizer, generators=noise)
    for epoch in range(found.step if found else 0, epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for inputs, labels in loader:
            loss = wrapped(inputs, labels, generator=noise["noise"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach() / len(loader)
        save_checkpoint(folder, wrapped, optimizer, step=epoch + 1, generators=noise)
        dist.all_reduce(total, op=dist.ReduceOp.SUM)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: mean loss {total.item() / dist.get_world_size():.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:2] or ["checkpoints"], *map(int, sys.argv[2:]))
