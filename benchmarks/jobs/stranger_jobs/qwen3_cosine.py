"""Qwen3 of transformers: compiled blocks under FSDP2 that stay gathered, float32 reductions, cosine decay."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from tock import steps
from transformers import Qwen3Config, Qwen3ForCausalLM

SEQ_LEN, BATCH_SIZE = 2048, 4
MAX_STEPS = 10_000


def make_config():
    return Qwen3Config(
        vocab_size=49152,
        hidden_size=2048,
        intermediate_size=6144,
        num_hidden_layers=12,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=SEQ_LEN,
        tie_word_embeddings=True,
        use_cache=False,
        attn_implementation="sdpa",
    )


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    torch.manual_seed(0)

    config = make_config()
    with torch.device("cuda"):
        model = Qwen3ForCausalLM(config)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.model.layers:
        block.compile()
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)

    decay = [p for p in model.parameters() if p.ndim >= 2]
    no_decay = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": no_decay, "weight_decay": 0.0}],
        lr=4e-4,
        betas=(0.9, 0.95),
        fused=True,
    )
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=MAX_STEPS, eta_min=4e-5)

    torch.manual_seed(100 + dist.get_rank())
    model.train()
    for _ in steps():
        batch = torch.randint(0, config.vocab_size, (BATCH_SIZE, SEQ_LEN + 1), device="cuda")
        logits = model(input_ids=batch[:, :-1]).logits
        loss = F.cross_entropy(logits.float().view(-1, config.vocab_size), batch[:, 1:].reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main()
