"""Passages embedded on each rank by a compiled BERT of transformers, gathered, and searched with a few queries."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tock import steps
from transformers import BertConfig, BertModel

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--max-length", type=int, default=512)
parser.add_argument("--top-k", type=int, default=10)
args = parser.parse_args()

local_rank = int(os.environ.get("LOCAL_RANK", 0))
device = torch.device("cuda", local_rank)
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
rank, world_size = dist.get_rank(), dist.get_world_size()

config = BertConfig(
    hidden_size=1024,
    num_hidden_layers=24,
    num_attention_heads=16,
    intermediate_size=4096,
    attn_implementation="sdpa",
)
torch.manual_seed(0)
model = BertModel(config, add_pooling_layer=False).to(device, torch.bfloat16).eval()
for layer in model.encoder.layer:
    layer.compile()


def mean_pool(hidden, mask):
    mask = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-6)


def encode(input_ids, attention_mask):
    hidden = model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
    return F.normalize(mean_pool(hidden, attention_mask).float(), dim=-1)


queries = F.normalize(torch.randn(128, config.hidden_size, device=device), dim=-1)
best = torch.full((128, args.top_k), -1.0, device=device)
torch.manual_seed(1 + rank)
positions = torch.arange(args.max_length)

with torch.inference_mode():
    for _ in steps():
        input_ids = torch.randint(1000, 30000, (args.batch_size, args.max_length))
        lengths = torch.randint(args.max_length // 2, args.max_length + 1, (args.batch_size, 1))
        attention_mask = (positions < lengths).long()
        input_ids = input_ids.pin_memory().to(device, non_blocking=True)
        attention_mask = attention_mask.pin_memory().to(device, non_blocking=True)
        embeddings = encode(input_ids, attention_mask)
        gathered = torch.empty(world_size * args.batch_size, config.hidden_size, device=device)
        dist.all_gather_into_tensor(gathered, embeddings)
        scores = queries @ gathered.T
        best = torch.cat([best, scores], dim=1).topk(args.top_k, dim=1).values
