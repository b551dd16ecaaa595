import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
from tick import steps

torch.manual_seed(0)
config = Qwen3MoeConfig(
    vocab_size=32768,
    hidden_size=768,
    intermediate_size=2048,
    moe_intermediate_size=512,
    num_hidden_layers=6,
    num_attention_heads=12,
    num_key_value_heads=4,
    head_dim=64,
    num_experts=32,
    num_experts_per_tok=4,
    norm_topk_prob=True,
    output_router_logits=True,
    router_aux_loss_coef=0.01,
    max_position_embeddings=2048,
    use_cache=False,
)
model = Qwen3MoeForCausalLM(config).to(device="cuda", dtype=torch.bfloat16)
load = torch.zeros(config.num_hidden_layers, config.num_experts, device="cuda")


def count_tokens(layer):
    def hook(module, args, output):
        chosen = args[1]
        load[layer].index_add_(0, chosen.flatten(), torch.ones(chosen.numel(), device=chosen.device))

    return hook


for k, layer in enumerate(model.model.layers):
    layer.mlp.experts.register_forward_hook(count_tokens(k))
    layer.self_attn.compile()

optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
scheduler = LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 20))
tokens = torch.randint(0, config.vocab_size, (64, 1024))
accumulation = 2
history = []
for step in steps(count=8):
    total = 0.0
    load.zero_()
    for micro in range(accumulation):
        batch = tokens[torch.randint(0, 64, (8,))].to("cuda")
        out = model(input_ids=batch, labels=batch)
        (out.loss / accumulation).backward()
        total += out.loss.detach() / accumulation
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad(set_to_none=True)
    history.append((total.item(), norm.item(), (load.max(1)[0] / load.mean(1)).max().item()))
