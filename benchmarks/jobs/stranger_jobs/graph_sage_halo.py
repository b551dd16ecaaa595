# Full-batch GraphSAGE. The nodes are cut in equal ranges over the ranks; before each layer every rank fetches the
# features of its neighbours' nodes that its own edges start from (all_to_all_single, and back for the gradient).
import os

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from tock import steps

NODES_PER_RANK = 300_000
DEGREE = 16
FAR = 0.05  # share of edges which go anywhere
NEAR = 2000  # spread of the others
FEATURES, HIDDEN, CLASSES, LAYERS = 128, 256, 172, 3


def random_graph(num_nodes):
    rng = np.random.default_rng(7)
    dst = np.repeat(np.arange(num_nodes, dtype=np.int64), DEGREE)
    src = (dst + np.rint(rng.normal(0, NEAR, dst.size)).astype(np.int64)) % num_nodes
    far = rng.random(dst.size) < FAR
    src[far] = rng.integers(0, num_nodes, int(far.sum()))
    return src, dst


class Partition:
    """Edges that end in this rank's nodes, sources renumbered: own nodes first, then the halo in order of its owner."""

    def __init__(self, rank, world, device):
        n = NODES_PER_RANK
        src, dst = random_graph(n * world)
        src_owner, dst_owner = src // n, dst // n

        needs = {}
        for reader in range(world):
            for owner in range(world):
                if reader != owner:
                    cut = (dst_owner == reader) & (src_owner == owner)
                    needs[reader, owner] = np.unique(src[cut])

        nothing = np.empty(0, dtype=np.int64)
        send = [needs.get((reader, rank), nothing) - rank * n for reader in range(world)]
        recv = [needs.get((rank, owner), nothing) for owner in range(world)]
        self.send_splits = [len(s) for s in send]
        self.recv_splits = [len(r) for r in recv]
        self.send_index = torch.from_numpy(np.concatenate(send)).to(device)

        mine = dst_owner == rank
        src, dst, src_owner = src[mine], dst[mine] - rank * n, src_owner[mine]
        halo = np.concatenate(recv)
        local = np.where(src_owner == rank, src - rank * n, n + np.searchsorted(halo, src))
        self.src, self.dst = torch.from_numpy(local).to(device), torch.from_numpy(dst).to(device)
        degree = torch.bincount(torch.from_numpy(dst), minlength=n).clamp(min=1)
        self.inverse_degree = (1.0 / degree).unsqueeze(1).to(device)
        self.num_nodes = n


class FetchHalo(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, part):
        ctx.part, ctx.shape = part, x.shape
        outgoing = x.index_select(0, part.send_index)
        incoming = x.new_empty(sum(part.recv_splits), x.shape[1])
        dist.all_to_all_single(incoming, outgoing, part.recv_splits, part.send_splits)
        return incoming

    @staticmethod
    def backward(ctx, grad):
        part = ctx.part
        back = grad.new_empty(sum(part.send_splits), grad.shape[1])
        dist.all_to_all_single(back, grad.contiguous(), part.send_splits, part.recv_splits)
        return grad.new_zeros(ctx.shape).index_add_(0, part.send_index, back), None


class SAGELayer(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.own, self.neigh = nn.Linear(cin, cout), nn.Linear(cin, cout, bias=False)

    def forward(self, x, part):
        everything = torch.cat([x, FetchHalo.apply(x, part)])
        messages = everything.index_select(0, part.src)
        summed = torch.zeros(part.num_nodes, x.shape[1], device=x.device, dtype=x.dtype)
        summed = summed.index_add(0, part.dst, messages)
        return self.own(x) + self.neigh(summed * part.inverse_degree)


class SAGE(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [FEATURES] + [HIDDEN] * LAYERS
        self.layers = nn.ModuleList(SAGELayer(a, b) for a, b in zip(widths, widths[1:]))
        self.norms = nn.ModuleList(nn.LayerNorm(HIDDEN) for _ in range(LAYERS))
        self.classify = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x, part):
        for layer, norm in zip(self.layers, self.norms):
            x = F.dropout(F.relu(norm(layer(x, part))), 0.3, self.training)
        return self.classify(x)


def run():
    dist.init_process_group(backend="nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.set_float32_matmul_precision("high")

    part = Partition(rank, world, device)
    print(f"rank {rank}: {part.src.numel()} edges, {sum(part.recv_splits)} nodes of others")

    torch.manual_seed(0)
    model = SAGE().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=5e-4)

    torch.manual_seed(1 + rank)
    features = torch.randn(part.num_nodes, FEATURES, device=device)
    labels = torch.randint(0, CLASSES, (part.num_nodes,), device=device)
    train_mask = torch.rand(part.num_nodes, device=device) < 0.6
    labels = labels.masked_fill(~train_mask, -1)
    total = train_mask.sum().float()
    dist.all_reduce(total)

    for epoch in steps():
        model.train()
        optimizer.zero_grad()
        logits = model(features, part)
        loss = F.cross_entropy(logits, labels, ignore_index=-1, reduction="sum") / total
        loss.backward()
        handles = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
        for handle in handles:
            handle.wait()
        optimizer.step()

        with torch.no_grad():
            right = ((logits.argmax(1) == labels) & train_mask).sum().float()
            dist.all_reduce(right)
            if epoch % 20 == 0 and rank == 0:
                print(f"epoch {epoch}: accuracy {(right / total).item():.4f}")


if __name__ == "__main__":
    run()
