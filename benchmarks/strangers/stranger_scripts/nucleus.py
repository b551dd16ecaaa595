import torch
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache
from tick import steps

BATCH, PROMPT, NEW = 32, 384, 24

config = LlamaConfig(
    vocab_size=32000,
    hidden_size=2048,
    intermediate_size=5632,
    num_hidden_layers=10,
    num_attention_heads=32,
    num_key_value_heads=4,
    max_position_embeddings=2048,
)
with torch.device("cuda"):
    torch.set_default_dtype(torch.bfloat16)
    model = LlamaForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
cache = StaticCache(config=config, max_batch_size=BATCH, max_cache_len=512, device="cuda", dtype=torch.bfloat16)


def top_p(logits, p=0.9, temperature=0.8):
    probs = torch.softmax(logits.float() / temperature, dim=-1)
    values, order = torch.sort(probs, dim=-1, descending=True)
    total = torch.cumsum(values, dim=-1)
    values[total - values > p] = 0.0
    values.div_(values.sum(dim=-1, keepdim=True))
    return order.gather(-1, torch.multinomial(values, num_samples=1))


def decode_one(token, mask, position, where):
    out = model(
        token,
        attention_mask=mask,
        position_ids=position,
        cache_position=where,
        past_key_values=cache,
        use_cache=True,
    )
    return out.logits[:, -1]


decode = torch.compile(decode_one, mode="reduce-overhead", fullgraph=True)
finished = 0
with torch.no_grad():
    for i in steps(count=6):
        prompts = torch.randint(3, 32000, (BATCH, PROMPT), device="cuda")
        lengths = torch.randint(PROMPT // 2, PROMPT + 1, (BATCH, 1), device="cuda")
        mask = torch.ones(BATCH, 512, dtype=torch.long, device="cuda")
        mask[:, :PROMPT] = (torch.arange(PROMPT, device="cuda") >= PROMPT - lengths).long()
        positions = (mask[:, :PROMPT].cumsum(-1) - 1).clamp(min=0)
        where = torch.arange(PROMPT, device="cuda")
        cache.reset()
        out = model(
            prompts,
            attention_mask=mask[:, :PROMPT],
            position_ids=positions,
            cache_position=where,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        token = top_p(out.logits[:, -1])
        generated = [token]
        position, where = positions[:, -1:] + 1, where[-1:] + 1
        done = torch.zeros(BATCH, 1, dtype=torch.bool, device="cuda")
        for _ in range(NEW - 1):
            logits = decode(token, mask, position, where)
            token = top_p(logits).masked_fill(done, 2)
            done |= token == 2
            generated.append(token)
            position, where = position + 1, where + 1
        texts = torch.cat(generated, dim=1).tolist()
        finished += int(done.sum())
