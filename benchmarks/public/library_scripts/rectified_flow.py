import torch
from rectified_flow_pytorch import RectifiedFlow, Unet

model = Unet(dim=64).cuda()
flow = RectifiedFlow(model).cuda()
opt = torch.optim.Adam(flow.parameters(), 3e-4)
for i in range(300):
    images = torch.randn(8, 3, 128, 128, device="cuda")
    loss = flow(images)
    loss.backward()
    opt.step()
    opt.zero_grad()
    print(loss.item())
