import torch
from transformers import LlamaConfig
from liger_kernel.transformers import AutoLigerKernelForCausalLM, apply_liger_kernel_to_llama
from transformers import AutoModelForCausalLM

apply_liger_kernel_to_llama()
cfg = LlamaConfig(
    hidden_size=1024,
    intermediate_size=2816,
    num_hidden_layers=6,
    num_attention_heads=16,
    num_key_value_heads=4,
    vocab_size=32000,
)
model = AutoModelForCausalLM.from_config(cfg, dtype=torch.bfloat16).cuda()
opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
for step in range(300):
    ids = torch.randint(0, 32000, (8, 1024), device="cuda")
    out = model(input_ids=ids, labels=ids)
    out.loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    opt.zero_grad(set_to_none=True)
    if step % 5 == 0:
        print(step, out.loss.item())
