import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from tock import steps

SEQ, DIM, HEADS, LAYERS, VOCAB = 40960, 2048, 16, 3, 32000

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()


def ring_exchange(*tensors):
    received = [torch.empty_like(t) for t in tensors]
    ops = [dist.P2POp(dist.isend, t, (rank + 1) % world) for t in tensors]
    ops += [dist.P2POp(dist.irecv, t, (rank - 1) % world) for t in received]
    return received, dist.batch_isend_irecv(ops)


def wait_for(received, works):
    for work in works:
        work.wait()
    return received


def flash_forward(q, k, v, causal):
    out = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)
    return out[0], out[1], out[6], out[7]


def flash_backward(grad, q, k, v, out, lse, seeds, causal):
    return torch.ops.aten._scaled_dot_product_flash_attention_backward(
        grad, q, k, v, out, lse, None, None, q.size(2), k.size(2), 0.0, causal, *seeds
    )


def merge(out, lse, block_out, block_lse):
    weight = torch.sigmoid(block_lse - lse).unsqueeze(-1)
    return out + weight * (block_out - out), torch.logaddexp(lse, block_lse)


class ZigZagRingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        q, k, v = local = [t.contiguous() for t in (q, k, v)]
        half = q.size(2) // 2
        for step in range(world):
            if step + 1 < world:
                coming = ring_exchange(k, v)
            if step == 0:
                out, lse, *seeds = flash_forward(q, k, v, True)
                out = out.float()
            elif step <= rank:
                out, lse = merge(out, lse, *flash_forward(q, k[:, :, :half], v[:, :, :half], False)[:2])
            else:
                block = flash_forward(q[:, :, half:], k, v, False)
                out[:, :, half:], lse[:, :, half:] = merge(out[:, :, half:], lse[:, :, half:], *block[:2])
            if step + 1 < world:
                k, v = wait_for(*coming)
        out = out.to(q.dtype)
        ctx.save_for_backward(*local, out, lse, *seeds)
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, lse, *seeds = ctx.saved_tensors
        half = q.size(2) // 2
        dq, dk, dv = (t.float() for t in flash_backward(grad, q, k, v, out, lse, seeds, True))
        for step in range(1, world):
            k, v = wait_for(*ring_exchange(k, v))
            coming = ring_exchange(dk, dv)
            rows, cols = (slice(None), slice(half)) if step <= rank else (slice(half, None), slice(None))
            queries = [t[:, :, rows].contiguous() for t in (grad, q, out, lse)]
            keys = [t[:, :, cols].contiguous() for t in (k, v)]
            block = flash_backward(*queries[:2], *keys, *queries[2:], seeds, False)
            dk, dv = wait_for(*coming)
            for total, part, where in zip((dq, dk, dv), block, (rows, cols, cols)):
                total[:, :, where] += part
        return tuple(t.to(q.dtype) for t in (dq, *wait_for(*ring_exchange(dk, dv))))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
        self.up, self.down = nn.Linear(DIM, 4 * DIM, bias=False), nn.Linear(4 * DIM, DIM, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        y = ZigZagRingAttention.apply(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.proj(y)
        return x + self.down(F.relu(self.up(self.norm2(x))).square())


torch.manual_seed(0)
layers = [nn.Embedding(VOCAB, DIM), *(Layer() for _ in range(LAYERS)), nn.RMSNorm(DIM)]
model = nn.Sequential(*layers, nn.Linear(DIM, VOCAB, bias=False))
model = DDP(model.to("cuda", torch.bfloat16), device_ids=[torch.cuda.current_device()])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), fused=True)
torch.manual_seed(1234)
for _ in steps():
    document = torch.randint(0, VOCAB, (1, SEQ + 1), device="cuda")
    chunks = document[:, :-1].chunk(2 * world, dim=1), document[:, 1:].chunk(2 * world, dim=1)
    ids, targets = (torch.cat([c[rank], c[-1 - rank]], dim=1) for c in chunks)
    loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
