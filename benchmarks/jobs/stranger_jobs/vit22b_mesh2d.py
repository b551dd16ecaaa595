"""A scaled vision transformer whose blocks run attention and MLP side by side (as ViT-22B): a mesh of data x tensor, all
parameters are DTensors by `distribute_module`, FSDP2 over the data dimension, every block compiled."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tock import steps
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor


class ParallelBlock(nn.Module):
    def __init__(self, width, heads, mlp, tp):
        super().__init__()
        self.tp, self.head_dim = tp, width // heads
        self.norm = nn.LayerNorm(width, bias=False)
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, width, bias=False)
        self.v = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, mlp)
        self.out = nn.Linear(width, width, bias=False)
        self.down = nn.Linear(mlp, width, bias=False)

    def split(self, t):
        return t.to_local().unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def forward(self, x):
        h = self.norm(x)
        q, k, v = self.split(self.q(h)), self.split(self.k(h)), self.split(self.v(h))
        # queries and keys are normalized without a gain
        q, k = F.layer_norm(q, (self.head_dim,)), F.layer_norm(k, (self.head_dim,))
        att = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        att = DTensor.from_local(att, self.tp, [Shard(2)], run_check=False)
        y = self.out(att) + self.down(F.gelu(self.up(h)))  # both are partial sums: one all-reduce for the two
        return x + y.redistribute(self.tp, [Replicate()])


class BigViT(nn.Module):
    def __init__(self, a, tp):
        super().__init__()
        self.patch = a.patch
        self.embed = nn.Linear(3 * a.patch * a.patch, a.width)
        self.pos = nn.Parameter(0.02 * torch.randn((a.image // a.patch) ** 2, a.width))
        self.blocks = nn.ModuleList([ParallelBlock(a.width, a.heads, a.mlp, tp) for _ in range(a.depth)])
        self.norm = nn.LayerNorm(a.width)
        self.head = nn.Linear(a.width, a.classes)

    def forward(self, patches):
        x = self.embed(patches) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


WAYS = {
    "q": Shard(0),
    "k": Shard(0),
    "v": Shard(0),
    "up": Shard(0),
    "out": Shard(1),
    "down": Shard(1),
    "head": Shard(0),
}


def partition(name, module, mesh):
    way = WAYS.get(name.rsplit(".", 1)[-1])
    if way is None:
        return  # replicated
    for key, p in list(module.named_parameters(recurse=False)):
        module.register_parameter(key, nn.Parameter(distribute_tensor(p.data, mesh, [way])))


def wrap_input(module, inputs, mesh):
    return DTensor.from_local(inputs[0], mesh, [Replicate()], run_check=False)


def unwrap_output(module, output, mesh):
    return output.redistribute(mesh, [Replicate()]).to_local()


def patchify(images, p):
    b, c, h, w = images.shape
    x = images.view(b, c, h // p, p, w // p, p).permute(0, 2, 4, 1, 3, 5)
    return x.reshape(b, (h // p) * (w // p), c * p * p)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--image", type=int, default=224)
    parser.add_argument("--patch", type=int, default=14)
    parser.add_argument("--width", type=int, default=3072)
    parser.add_argument("--heads", type=int, default=24)
    parser.add_argument("--mlp", type=int, default=12288)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--classes", type=int, default=21842)
    parser.add_argument("--batch", type=int, default=32)
    a = parser.parse_args()

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    mesh = init_device_mesh("cuda", (dist.get_world_size() // a.tp, a.tp), mesh_dim_names=("data", "tensor"))
    data, tensor = mesh["data"], mesh["tensor"]

    torch.manual_seed(22)
    with device:
        model = BigViT(a, tensor)
    distribute_module(model, tensor, partition, wrap_input, unwrap_output)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        block.compile(fullgraph=True)
        fully_shard(block, mesh=data, mp_policy=policy)
    fully_shard(model, mesh=data, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.03)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min((s + 1) / 1000, (1000 / (s + 1)) ** 0.5))

    torch.manual_seed(data.get_local_rank())  # those that share a model see the same pictures
    for _ in steps():
        images = torch.randn(a.batch, 3, a.image, a.image, device=device)
        labels = torch.randint(a.classes, (a.batch,), device=device)
        logits = model(patchify(images, a.patch))
        loss = F.cross_entropy(logits.float(), labels, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
