from .convolution import Conv2d as Conv2d
from .elementary import Identity as Identity
from .linear import Head as Head
from .linear import Linear as Linear
from .normalisation import BatchNorm as BatchNorm
from .pooling import GlobalPool as GlobalPool
from .pooling import MaxPool2d as MaxPool2d
