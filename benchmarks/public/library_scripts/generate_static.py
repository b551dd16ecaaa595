import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.set_float32_matmul_precision("high")
cfg = LlamaConfig(
    hidden_size=1024,
    intermediate_size=2816,
    num_hidden_layers=8,
    num_attention_heads=16,
    num_key_value_heads=4,
    vocab_size=32000,
)
model = LlamaForCausalLM(cfg).to("cuda", torch.bfloat16).eval()
ids = torch.randint(0, 32000, (4, 128), device="cuda")
for _ in range(20):
    out = model.generate(ids, max_new_tokens=32, do_sample=False, pad_token_id=0)
print(out.shape)
