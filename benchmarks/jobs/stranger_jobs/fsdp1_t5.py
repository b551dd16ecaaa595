"""T5 of transformers under FullyShardedDataParallel, wrapped block by block, bfloat16."""

import functools
import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import BackwardPrefetch, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from tock import steps
from transformers import T5Config, T5ForConditionalGeneration
from transformers.models.t5.modeling_t5 import T5Block

SOURCE_LEN, TARGET_LEN, BATCH = 512, 128, 16


def setup():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


def get_model():
    config = T5Config(
        vocab_size=32128,
        d_model=2048,
        d_kv=64,
        d_ff=5120,
        num_layers=6,
        num_heads=32,
        dropout_rate=0.1,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        decoder_start_token_id=0,
        use_cache=False,
    )
    return T5ForConditionalGeneration(config)


def wrap(model):
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={T5Block})
    mixed_precision = MixedPrecision(
        param_dtype=torch.bfloat16,
        reduce_dtype=torch.bfloat16,
        buffer_dtype=torch.bfloat16,
    )
    return FSDP(
        model,
        auto_wrap_policy=policy,
        mixed_precision=mixed_precision,
        sharding_strategy=ShardingStrategy.FULL_SHARD,
        backward_prefetch=BackwardPrefetch.BACKWARD_PRE,
        device_id=torch.cuda.current_device(),
        limit_all_gathers=True,
        use_orig_params=True,
    )


def main():
    setup()
    torch.manual_seed(2022)
    model = wrap(get_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    model.train()
    for _ in steps():
        source_ids = torch.randint(1, 32000, (BATCH, SOURCE_LEN), device="cuda")
        source_mask = torch.ones_like(source_ids)
        target_ids = torch.randint(1, 32000, (BATCH, TARGET_LEN), device="cuda")
        optimizer.zero_grad()
        output = model(input_ids=source_ids, attention_mask=source_mask, labels=target_ids)
        loss = output["loss"]
        loss.backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()


if __name__ == "__main__":
    main()
