import numpy as np, torch
from torch import nn
from sklearn.datasets import make_classification
from skorch import NeuralNetClassifier

X, y = make_classification(5000, 64, n_informative=20, random_state=0)
X, y = X.astype(np.float32), y.astype(np.int64)


class MyModule(nn.Module):
    def __init__(self, num_units=256):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64, num_units),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(num_units, num_units),
            nn.ReLU(),
            nn.Linear(num_units, 2),
            nn.Softmax(dim=-1),
        )

    def forward(self, X):
        return self.layers(X)


net = NeuralNetClassifier(MyModule, max_epochs=3, lr=0.1, iterator_train__shuffle=True, device="cuda")
net.fit(X, y)
print(net.predict_proba(X[:5]))
