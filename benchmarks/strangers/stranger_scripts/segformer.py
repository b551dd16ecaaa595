import torch, torch.nn.functional as F
from transformers import SegformerConfig, SegformerForSemanticSegmentation
from tick import steps

model = SegformerForSemanticSegmentation(
    SegformerConfig(num_labels=19, hidden_sizes=[64, 128, 320, 512], depths=[2, 2, 2, 2])
).cuda()
net = torch.compile(model)
opt = torch.optim.AdamW(
    [{"params": model.segformer.parameters(), "lr": 6e-5}, {"params": model.decode_head.parameters(), "lr": 6e-4}],
    foreach=True,
)
for i in steps():
    x = torch.randn(8, 3, 256, 512, device="cuda")
    y = torch.randint(0, 19, (8, 256, 512), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        logits = net(pixel_values=x).logits
    up = F.interpolate(logits.float(), size=(256, 512), mode="bilinear", align_corners=False)
    loss = F.cross_entropy(up, y, ignore_index=255)
    loss.backward()
    opt.step()
    opt.zero_grad()
    with torch.no_grad():
        hit = (up.argmax(1) == y).float().mean()
