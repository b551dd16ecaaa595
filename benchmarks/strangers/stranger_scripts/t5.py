import torch
from transformers import BartConfig, BartForConditionalGeneration
from tick import steps

cfg = BartConfig(
    vocab_size=20000,
    d_model=768,
    encoder_layers=4,
    decoder_layers=4,
    encoder_ffn_dim=3072,
    decoder_ffn_dim=3072,
    encoder_attention_heads=12,
    decoder_attention_heads=12,
)
model = BartForConditionalGeneration(cfg).cuda().train()
fwd = torch.compile(model)
opt = torch.optim.Adafactor(model.parameters(), lr=1e-3)
crit = torch.nn.CrossEntropyLoss(label_smoothing=0.1, ignore_index=-100)
for i in steps():
    src = torch.randint(0, 20000, (16, 512), device="cuda")
    tgt = torch.randint(0, 20000, (16, 128), device="cuda")
    lens = torch.randint(200, 513, (16,), device="cuda")
    mask = (torch.arange(512, device="cuda")[None] < lens[:, None]).long()
    with torch.autocast("cuda", torch.bfloat16):
        logits = fwd(input_ids=src, attention_mask=mask, decoder_input_ids=tgt).logits
        loss = crit(logits.float().view(-1, 20000), tgt.roll(-1, 1).view(-1))
    loss.backward()
    opt.step()
    opt.zero_grad()
