"""A masked language model on nn.TransformerEncoder: DDP, AdamW sharded by ZeroRedundancyOptimizer, autocast."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from tock import steps

VOCAB, MASK_ID, SEQ, BATCH = 30522, 103, 512, 16


class MaskedLM(nn.Module):
    def __init__(self, d_model=1280, nhead=20, ff=5120, layers=16):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, d_model)
        self.pos = nn.Parameter(torch.zeros(1, SEQ, d_model))
        layer = nn.TransformerEncoderLayer(
            d_model, nhead, ff, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(d_model), enable_nested_tensor=False)
        self.head = nn.Sequential(nn.Linear(d_model, d_model), nn.GELU(), nn.LayerNorm(d_model))
        self.bias = nn.Parameter(torch.zeros(VOCAB))
        nn.init.normal_(self.tok.weight, std=0.02)
        nn.init.normal_(self.pos, std=0.02)

    def forward(self, ids):
        x = self.encoder(self.tok(ids) + self.pos)
        return nn.functional.linear(self.head(x), self.tok.weight, self.bias)


def mask_tokens(ids):
    labels = ids.clone()
    masked = torch.rand(ids.shape, device=ids.device) < 0.15
    labels.masked_fill_(~masked, -100)
    return ids.masked_fill(masked, MASK_ID), labels


def main():
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl", rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
    torch.manual_seed(rank)

    model = DDP(MaskedLM().to(local_rank), device_ids=[local_rank], gradient_as_bucket_view=True)
    loss_fn = nn.CrossEntropyLoss(ignore_index=-100)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(),
        optimizer_class=torch.optim.AdamW,
        parameters_as_bucket_view=True,
        lr=1e-4,
        weight_decay=0.01,
    )

    model.train()
    for _ in steps():
        ids, labels = mask_tokens(torch.randint(1000, VOCAB, (BATCH, SEQ), device=local_rank))
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(ids)
            loss = loss_fn(logits.view(-1, VOCAB), labels.view(-1))
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
