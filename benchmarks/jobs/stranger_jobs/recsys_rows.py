"""A recommender: one table of embeddings sharded by rows, looked up by all-to-all; cross network and MLP under DDP."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from tock import steps

FEATURES, ROWS, DIM, DENSE, BATCH = 26, 400_000, 128, 13, 16384


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, out_splits, in_splits):
        ctx.splits = out_splits, in_splits
        out = x.new_empty(sum(out_splits), *x.shape[1:])
        dist.all_to_all_single(out, x.contiguous(), out_splits, in_splits)
        return out

    @staticmethod
    def backward(ctx, grad):
        out_splits, in_splits = ctx.splits
        back = grad.new_empty(sum(in_splits), *grad.shape[1:])
        dist.all_to_all_single(back, grad.contiguous(), in_splits, out_splits)
        return back, None, None


class RowShardedEmbedding(nn.Module):
    def __init__(self, rows, dim):
        super().__init__()
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.weight = nn.Parameter(torch.empty(rows // self.world, dim).uniform_(-0.01, 0.01))

    def forward(self, ids):
        shape, ids = ids.shape, ids.flatten()
        owner = ids % self.world
        order = torch.argsort(owner)
        send = torch.bincount(owner, minlength=self.world)
        receive = torch.empty_like(send)
        dist.all_to_all_single(receive, send)
        send, receive = send.tolist(), receive.tolist()
        wanted = ids.new_empty(sum(receive))
        dist.all_to_all_single(wanted, ids[order] // self.world, receive, send)
        rows = F.embedding(wanted, self.weight, sparse=True)
        rows = Exchange.apply(rows, send, receive)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(len(order), device=order.device)
        return rows[inverse].view(*shape, -1)


class CrossLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x0, x):
        return x0 * self.linear(x) + x


class DCN(nn.Module):
    def __init__(self, layers=3):
        super().__init__()
        width = (FEATURES + 1) * DIM
        self.bottom = nn.Sequential(nn.Linear(DENSE, 512), nn.ReLU(), nn.Linear(512, DIM), nn.ReLU())
        self.cross = nn.ModuleList(CrossLayer(width) for _ in range(layers))
        sizes = [width, 2048, 1024, 512]
        deep = [layer for a, b in zip(sizes, sizes[1:]) for layer in (nn.Linear(a, b), nn.ReLU())]
        self.top = nn.Sequential(*deep, nn.Linear(512, 1))

    def forward(self, dense, embedded):
        x0 = x = torch.cat([self.bottom(dense), embedded.flatten(1)], dim=1)
        for layer in self.cross:
            x = layer(x0, x)
        return self.top(x).squeeze(1)


dist.init_process_group("nccl")
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
torch.manual_seed(dist.get_rank())
torch.set_float32_matmul_precision("high")

table = RowShardedEmbedding(FEATURES * ROWS, DIM).cuda()
model = DDP(DCN().cuda(), device_ids=[local_rank], gradient_as_bucket_view=True)
sparse_optimizer = torch.optim.Adagrad(table.parameters(), lr=0.02)
dense_optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
offsets = torch.arange(FEATURES, device="cuda") * ROWS

for _ in steps():
    dense = torch.rand(BATCH, DENSE, device="cuda").log1p()
    ids = torch.randint(0, ROWS, (BATCH, FEATURES), device="cuda") + offsets
    clicks = torch.randint(0, 2, (BATCH,), device="cuda").float()
    logits = model(dense, table(ids))
    loss = F.binary_cross_entropy_with_logits(logits, clicks)
    sparse_optimizer.zero_grad()
    dense_optimizer.zero_grad()
    loss.backward()
    sparse_optimizer.step()
    dense_optimizer.step()
