import torch, segmentation_models_pytorch as smp
from torch.utils.data import DataLoader, TensorDataset

model = smp.Unet("resnet34", encoder_weights=None, in_channels=3, classes=1).to("cuda")
loss_fn = smp.losses.DiceLoss(smp.losses.BINARY_MODE, from_logits=True)
opt = torch.optim.AdamW(model.parameters(), lr=0.0002)
data = TensorDataset(torch.rand(64, 3, 256, 256), torch.randint(0, 2, (64, 1, 256, 256)).float())
for epoch in range(10):
    for image, mask in DataLoader(data, batch_size=16, shuffle=True):
        image, mask = (image.cuda(), mask.cuda())
        logits = model(image)
        assert mask.max() <= 1.0 and mask.min() >= 0
        loss = loss_fn(logits, mask)
        prob = logits.sigmoid()
        pred = (prob > 0.5).float()
        tp, fp, fn, tn = smp.metrics.get_stats(pred.long(), mask.long(), mode="binary")
        iou = smp.metrics.iou_score(tp, fp, fn, tn, reduction="micro")
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(loss.item(), iou.item())
