import argparse
import math
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from tock import steps
from transformers import MistralConfig, MistralForCausalLM

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class LoRALinear(nn.Module):
    def __init__(self, base, r, alpha, dropout):
        super().__init__()
        self.base = base
        self.lora_a = nn.Linear(base.in_features, r, bias=False, dtype=base.weight.dtype, device=base.weight.device)
        self.lora_b = nn.Linear(r, base.out_features, bias=False, dtype=base.weight.dtype, device=base.weight.device)
        self.dropout, self.scaling = nn.Dropout(dropout), alpha / r
        nn.init.kaiming_uniform_(self.lora_a.weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_b.weight)

    def forward(self, x):
        return self.base(x) + self.scaling * self.lora_b(self.lora_a(self.dropout(x)))


def add_lora(model, r, alpha, dropout):
    model.requires_grad_(False)
    for layer in model.model.layers:
        for parent in (layer.self_attn, layer.mlp):
            for name, child in list(parent.named_children()):
                if name in TARGETS:
                    setattr(parent, name, LoRALinear(child, r, alpha, dropout))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=4096)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--lr", type=float, default=2e-4)
    args = parser.parse_args()

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=32000,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=args.layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        sliding_window=None,
        use_cache=False,
        attn_implementation="sdpa",
    )
    with torch.device("cuda"):
        model = MistralForCausalLM(config).to(torch.bfloat16)
    add_lora(model, args.rank, 2 * args.rank, 0.05)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)

    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=args.lr, weight_decay=0.0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1000)
    torch.manual_seed(1 + dist.get_rank())
    for _ in steps():
        ids = torch.randint(0, config.vocab_size, (args.batch_size, args.seq_len), device="cuda")
        labels = ids.clone()
        labels[:, : args.seq_len // 4] = -100
        logits = model(input_ids=ids).logits
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten(), ignore_index=-100)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trainable, 0.3)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main()
