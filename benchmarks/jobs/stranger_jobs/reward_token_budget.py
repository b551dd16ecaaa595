"""Reward model from preferences (Bradley-Terry). Batches hold as many pairs as a budget of tokens allows, padded to their
longest: each rank has another length and another number of rows, in every step. DDP with gradients compressed to half."""

import itertools
import os

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from tock import steps

VOCAB, DIM, LAYERS, HEADS, FFN = 32000, 1536, 20, 12, 4096
TOKENS, MAX_LEN, PAD_TO, PAIRS = 8192, 1536, 64, 20000
LOG_EVERY = 8


class PreferenceBatches:
    """Lengths of the pairs only; the tokens are made on the device."""

    def __init__(self, rank, world, seed=0):
        self.rank, self.world, self.seed = rank, world, seed
        rng = np.random.default_rng(seed)
        prompt = rng.lognormal(5.0, 0.6, PAIRS)
        answers = rng.lognormal(5.4, 0.5, (2, PAIRS))
        lengths = np.clip(prompt + answers, 32, MAX_LEN).astype(np.int64).T
        lengths = lengths[np.argsort(lengths.max(1), kind="stable")]
        self.batches, batch, longest = [], [], 0
        for pair in lengths:
            padded = -(-int(pair.max()) // PAD_TO) * PAD_TO
            if batch and 2 * (len(batch) + 1) * max(longest, padded) > TOKENS:
                self.batches.append((np.array(batch), longest))
                batch, longest = [], 0
            batch.append(pair)
            longest = max(longest, padded)

    def __iter__(self):
        for epoch in itertools.count():
            order = np.random.default_rng(self.seed + 1 + epoch).permutation(len(self.batches))
            usable = len(order) // self.world * self.world
            for i in order[self.rank : usable : self.world]:
                yield self.batches[i]


def rotary(x, cos, sin):
    x1, x2 = x.float().chunk(2, dim=-1)
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1).to(x.dtype)


class DecoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_norm, self.post_norm = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))
        self.gate_proj, self.up_proj = nn.Linear(DIM, FFN, bias=False), nn.Linear(DIM, FFN, bias=False)
        self.down_proj = nn.Linear(FFN, DIM, bias=False)

    def forward(self, x, cos, sin):
        h = self.input_norm(x)
        q, k, v = (p(h).unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        # padding is on the right, so causal alone hides it from all real tokens
        a = F.scaled_dot_product_attention(rotary(q, cos, sin), rotary(k, cos, sin), v, is_causal=True)
        x = x + self.o_proj(a.transpose(1, 2).flatten(2))
        h = self.post_norm(x)
        return x + self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))


class RewardModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(DecoderLayer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(DIM)
        self.score = nn.Linear(DIM, 1, bias=False)
        half = DIM // HEADS // 2
        angle = torch.outer(torch.arange(MAX_LEN + PAD_TO), 1e4 ** (-torch.arange(half) / half))
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        for p in self.parameters():
            if p.ndim == 2:
                nn.init.normal_(p, 0.0, 0.02)

    def forward(self, ids, last):
        x = self.embed_tokens(ids)
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x, cos, sin)
        x = self.norm(x[torch.arange(len(ids), device=ids.device), last])
        return self.score(x).squeeze(-1)


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group(backend="nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", local_rank)

    # all must have made the same batches
    batches = PreferenceBatches(rank, world)
    counts = [None] * world
    dist.all_gather_object(counts, len(batches.batches))
    assert len(set(counts)) == 1, counts

    torch.manual_seed(1)
    model = RewardModel().to(device)
    ddp = DistributedDataParallel(model, device_ids=[local_rank], gradient_as_bucket_view=True, broadcast_buffers=False)
    ddp.register_comm_hook(None, fp16_compress_hook)
    opt = torch.optim.AdamW(ddp.parameters(), lr=9e-6, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 5000)
    metrics = torch.zeros(4, device=device)  # pairs, loss, right ones, tokens

    for step, (lengths, padded) in zip(steps(), batches):
        pairs = len(lengths)
        ids = torch.randint(3, VOCAB, (2 * pairs, padded), device=device)
        ends = torch.from_numpy(lengths.T.reshape(-1).copy()).to(device)
        ids = ids.masked_fill(torch.arange(padded, device=device) >= ends[:, None], 0)

        # a pair counts the same wherever it is: DDP's mean over ranks is put right by the number of pairs of all
        total = torch.tensor(float(pairs), device=device)
        dist.all_reduce(total)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            chosen, rejected = ddp(ids, ends - 1).float().chunk(2)
        margin = chosen - rejected
        loss = -F.logsigmoid(margin).sum()
        (loss * world / total).backward()
        nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        opt.step()
        sched.step()
        opt.zero_grad(set_to_none=True)

        with torch.no_grad():
            metrics += torch.stack((total / world, loss, (margin > 0).sum(), ends.sum()))
        if (step + 1) % LOG_EVERY == 0:
            dist.all_reduce(metrics)
            if rank == 0:
                n, l, right, tokens = metrics.tolist()
                print(f"[{step + 1}] loss {l / n:.4f} accuracy {right / n:.3f} tokens/step {tokens / LOG_EVERY:.0f}")
            metrics.zero_()


if __name__ == "__main__":
    main()
