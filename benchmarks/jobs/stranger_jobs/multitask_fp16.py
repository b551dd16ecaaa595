import os
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from tock import steps

DIM, HEADS, LAYERS, VOCAB, SEQ, BATCH = 1536, 24, 12, 30522, 512, 24
TASKS = {"topic": 64, "entailment": 3, "tagging": 45, "similarity": 1}


class Head(nn.Module):
    def __init__(self, outputs, per_token):
        super().__init__()
        self.per_token = per_token
        self.net = nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh(), nn.Dropout(0.1), nn.Linear(DIM, outputs))

    def forward(self, hidden):
        return self.net(hidden if self.per_token else hidden[:, 0])


class MultiTaskModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, DIM), nn.Embedding(SEQ, DIM)
        layer = nn.TransformerEncoderLayer(
            DIM, HEADS, 4 * DIM, dropout=0.0, activation=F.gelu, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, LAYERS, norm=nn.LayerNorm(DIM), enable_nested_tensor=False)
        self.heads = nn.ModuleDict({name: Head(n, name == "tagging") for name, n in TASKS.items()})

    def forward(self, ids, task):
        x = self.tok(ids) + self.pos.weight[: ids.size(1)]
        return self.heads[task](self.encoder(x))


def make_batch(task, device):
    ids = torch.randint(0, VOCAB, (BATCH, SEQ), device=device)
    if task == "similarity":
        return ids, torch.rand(BATCH, device=device)
    shape = (BATCH, SEQ) if task == "tagging" else (BATCH,)
    return ids, torch.randint(0, TASKS[task], shape, device=device)


def compute_loss(task, out, target):
    if task == "similarity":
        return F.mse_loss(torch.sigmoid(out.squeeze(-1).float()), target)
    return F.cross_entropy(out.flatten(0, -2).float(), target.flatten(), label_smoothing=0.1)


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    device = torch.device("cuda", local_rank)
    torch.manual_seed(0)
    model = MultiTaskModel().to(device)
    model = DDP(model, device_ids=[local_rank], find_unused_parameters=True, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.01, fused=True)
    scaler = torch.amp.GradScaler("cuda")
    torch.manual_seed(dist.get_rank())
    sampler = random.Random(7)
    for _ in steps():
        task = sampler.choice(list(TASKS))
        ids, target = make_batch(task, device)
        with torch.autocast("cuda", dtype=torch.float16):
            out = model(ids, task)
            loss = compute_loss(task, out, target)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


if __name__ == "__main__":
    main()
