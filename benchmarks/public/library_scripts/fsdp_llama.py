import os, torch, torch.distributed as dist, functools
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

dist.init_process_group("nccl")
r = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(r)
m = LlamaForCausalLM(
    LlamaConfig(
        hidden_size=2048, intermediate_size=5632, num_hidden_layers=8, num_attention_heads=16, num_key_value_heads=8
    )
)
bf = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)
m = FSDP(
    m,
    auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={LlamaDecoderLayer}),
    mixed_precision=bf,
    sharding_strategy=ShardingStrategy.FULL_SHARD,
    device_id=torch.cuda.current_device(),
    use_orig_params=True,
    limit_all_gathers=True,
)
opt = torch.optim.AdamW(m.parameters(), lr=0.0001)
for i in range(8):
    ids = torch.randint(0, 32000, (2, 2048), device=r)
    loss = m(input_ids=ids, labels=ids).loss
    loss.backward()
    m.clip_grad_norm_(1.0)
    opt.step()
    opt.zero_grad()
    dist.all_reduce(loss, op=dist.ReduceOp.AVG)
    if r == 0:
        print(i, loss.item())
dist.destroy_process_group()
