import torch
from monai.networks.nets import UNet
from monai.networks.layers import Norm
from monai.losses import DiceLoss
from monai.metrics import DiceMetric
from monai.data import Dataset, DataLoader
from monai.transforms import Compose, RandFlipd, RandAffined, EnsureTyped

device = torch.device("cuda:0")
items = [{"image": torch.rand(1, 96, 96, 96), "label": torch.randint(0, 2, (1, 96, 96, 96))} for _ in range(16)]
ds = Dataset(
    items, Compose([RandFlipd(keys=["image", "label"], prob=0.5, spatial_axis=0), EnsureTyped(keys=["image", "label"])])
)
loader = DataLoader(ds, batch_size=2, shuffle=True, num_workers=0)
model = UNet(
    spatial_dims=3,
    in_channels=1,
    out_channels=2,
    channels=(16, 32, 64, 128, 256),
    strides=(2, 2, 2, 2),
    num_res_units=2,
    norm=Norm.BATCH,
).to(device)
loss_function = DiceLoss(to_onehot_y=True, softmax=True)
optimizer = torch.optim.Adam(model.parameters(), 0.0001)
for epoch in range(50):
    model.train()
    epoch_loss = 0
    step = 0
    for batch_data in loader:
        step += 1
        inputs, labels = (batch_data["image"].to(device), batch_data["label"].to(device))
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = loss_function(outputs, labels)
        loss.backward()
        optimizer.step()
        epoch_loss += loss.item()
        print(f"{step}/{len(ds) // loader.batch_size}, train_loss: {loss.item():.4f}")
