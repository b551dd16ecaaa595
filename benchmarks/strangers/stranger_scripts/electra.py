import torch
import torch.nn.functional as F
from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining
from transformers import get_linear_schedule_with_warmup
from tick import steps

VOCAB, MASK, B, L = 30522, 103, 128, 256

common = dict(vocab_size=VOCAB, embedding_size=128, max_position_embeddings=512)
gen_cfg = ElectraConfig(hidden_size=128, num_hidden_layers=10, num_attention_heads=2, intermediate_size=512, **common)
disc_cfg = ElectraConfig(hidden_size=512, num_hidden_layers=10, num_attention_heads=8, intermediate_size=2048, **common)
generator = ElectraForMaskedLM(gen_cfg).cuda()
discriminator = ElectraForPreTraining(disc_cfg).cuda()
generator.electra.embeddings = discriminator.electra.embeddings
generator.generator_lm_head.weight = discriminator.electra.embeddings.word_embeddings.weight
disc = torch.compile(discriminator)


@torch.compile
def rtd_loss(logits, labels, attention):
    loss = F.binary_cross_entropy_with_logits(logits.float(), labels.float(), reduction="none")
    return (loss * attention).sum() / attention.sum()


def gumbel_sample(logits):
    u = torch.rand_like(logits, dtype=torch.float32).clamp_(1e-9, 1 - 1e-9)
    return (logits.float() - torch.log(-torch.log(u))).argmax(-1)


params = list({id(p): p for m in (generator, discriminator) for p in m.parameters()}.values())
opt = torch.optim.AdamW(params, lr=5e-4, eps=1e-6, weight_decay=0.01)
sched = get_linear_schedule_with_warmup(opt, 100, 10000)
scaler = torch.amp.GradScaler("cuda")
corpus = torch.randint(1000, VOCAB, (2048, L))
picks = int(0.15 * L)

running = 0.0
for i in steps():
    rows = torch.randint(0, len(corpus), (B,))
    ids = corpus[rows].to("cuda")
    attention = torch.ones_like(ids)
    attention[:, -16:] = (torch.rand(B, 1, device="cuda") < 0.5).long()
    where = torch.rand(B, L - 16, device="cuda").topk(picks, dim=1).indices
    original = ids.gather(1, where)
    masked = ids.scatter(1, where, MASK)
    with torch.autocast("cuda", dtype=torch.float16):
        hidden = generator.electra(masked, attention_mask=attention).last_hidden_state
        hidden = hidden.gather(1, where[..., None].expand(-1, -1, hidden.size(-1)))
        logits = generator.generator_lm_head(generator.generator_predictions(hidden))
        mlm = F.cross_entropy(logits.flatten(0, 1), original.flatten())
        with torch.no_grad():
            fake = gumbel_sample(logits)
            corrupted = ids.scatter(1, where, fake)
            replaced = corrupted != ids
        rtd = rtd_loss(disc(corrupted, attention_mask=attention).logits, replaced, attention)
        loss = mlm + 50.0 * rtd
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(params, 1.0)
    scaler.step(opt)
    scaler.update()
    sched.step()
    running += loss.item()
