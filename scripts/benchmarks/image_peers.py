"""Peers of the benchmark of pictures: shuffled batches of random crops, flipped at random, each as its library's guide has it.

Those that keep pictures in a format of their own get the same JPEG bytes in it, in an order shuffled once. Most decode with
Pillow and take torchvision's usual steps to float32. litdata decodes to uint8 tensors first, timm has steps of its own, Grain
delivers uint8 arrays; SPDL decodes, crops and resizes with FFmpeg, whose libraries have to be there, in threads of this process
and delivers uint8. Every queue holds two batches a worker, where the library lets one say. Grain's workers are started afresh:
their processor time has the imports in it.
A library is imported where it is measured; none is needed unless ``scripts/bench images --peers`` asks for it.
"""

from __future__ import annotations

import importlib.util
import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

SIZE = 224
SHARD_BYTES = 1 << 24
Pair = tuple[str, int]


@dataclass(frozen=True)
class Peer:
    """A library: its name for pip, what to import before the clock starts, how it reads, and its own format, if it has one."""

    package: str
    modules: Sequence[str]
    read: Callable[[Path, int, int], Iterable[Any]]
    write: Callable[[Path, Sequence[Pair]], None] | None = None

    def installed(self) -> bool:
        """Say whether its first module can be found."""
        return importlib.util.find_spec(self.modules[0].split(".")[0]) is not None

    def folder(self, root: Path) -> Path:
        """Return the folder to read, ``root`` or one beside it in the peer's format, which is written where it is missing."""
        if self.write is None:
            return root
        folder, draft = (root.with_name(f"{root.name}.{self.package}{end}") for end in ("", ".part"))
        if not folder.is_dir():
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir()
            self.write(draft, pictures(root))
            draft.rename(folder)
        return folder


def pictures(root: Path) -> list[Pair]:
    """Return path and class number of every JPEG in class folders, shuffled the same way each time."""
    classes = sorted(folder for folder in root.iterdir() if folder.is_dir())
    found = [(str(path), label) for label, folder in enumerate(classes) for path in sorted(folder.glob("*.jpg"))]
    random.Random(0).shuffle(found)
    return found


def usual_steps() -> Any:
    """What most projects do with a Pillow picture: torchvision's transforms of the first kind, float32 (3, 224, 224)."""
    from torchvision import transforms

    steps = [transforms.RandomResizedCrop(SIZE), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    return transforms.Compose([*steps, transforms.Normalize([0.5] * 3, [0.5] * 3)])


def timm(root: Path, batch_size: int, workers: int) -> Iterable[Any]:
    """timm's folder reader, transforms and loader: uint8 from the workers, normalised to float32 by its prefetcher."""
    import torch

    data: Any = import_module("timm.data")
    options: dict[str, Any] = {"mean": [0.5] * 3, "std": [0.5] * 3, "color_jitter": None, "persistent_workers": False}
    options |= {"num_workers": workers, "device": torch.device("cpu"), "is_training": True}
    loader: Iterable[Any] = data.create_loader(
        data.create_dataset("", str(root)), (3, SIZE, SIZE), batch_size, **options
    )
    return loader


def write_tars(folder: Path, pairs: Sequence[Pair]) -> None:
    """Write webdataset's shards."""
    with import_module("webdataset").ShardWriter(f"{folder}/%04d.tar", maxcount=250, verbose=0) as shards:
        for number, (path, label) in enumerate(pairs):
            shards.write({"__key__": f"{number:05d}", "jpg": Path(path).read_bytes(), "cls": label})


def webdataset(folder: Path, batch_size: int, workers: int) -> Iterable[Any]:
    """Shuffled shards, a buffer of 1,000 samples in each worker, batches made there."""
    wds: Any = import_module("webdataset")
    shards = sorted(str(path) for path in folder.glob("*.tar"))
    data = wds.WebDataset(shards, shardshuffle=len(shards)).shuffle(1000).decode("pil").to_tuple("jpg", "cls")
    batches = data.map_tuple(usual_steps(), int).batched(batch_size, partial=False)
    loader: Iterable[Any] = wds.WebLoader(batches, batch_size=None, num_workers=workers)
    return loader


def write_mds(folder: Path, pairs: Sequence[Pair]) -> None:
    """Write mosaicml-streaming's shards; its ``jpeg`` column takes over the bytes of an opened file."""
    from PIL import Image

    columns = {"x": "jpeg", "y": "int"}
    with import_module("streaming").MDSWriter(out=str(folder), columns=columns, size_limit=SHARD_BYTES) as shards:
        for path, label in pairs:
            with Image.open(path) as picture:
                shards.write({"x": picture, "y": label})


def streaming(folder: Path, batch_size: int, workers: int) -> Iterable[Any]:
    """Its data set of pictures over local shards, and torch's loader."""
    from torch.utils.data import DataLoader

    import_module("streaming.base.util").clean_stale_shared_memory()  # of a run before this one that was ended
    kind: Any = import_module("streaming.vision.base").StreamingVisionDataset
    data = kind(local=str(folder), shuffle=True, batch_size=batch_size, transform=usual_steps())
    return DataLoader(data, batch_size, drop_last=True, num_workers=workers)


def opened(pair: Pair) -> dict[str, Any]:
    """Return one sample for litdata, which takes over the bytes of an opened file."""
    from PIL import Image

    return {"image": Image.open(pair[0]), "label": pair[1]}


def write_chunks(folder: Path, pairs: Sequence[Pair]) -> None:
    """Write litdata's chunks."""
    options: dict[str, Any] = {"num_workers": 1, "chunk_bytes": SHARD_BYTES, "verbose": False}
    import_module("litdata").optimize(fn=opened, inputs=list(pairs), output_dir=str(folder), **options)


@dataclass(frozen=True)
class OnImage:
    """Take steps with a sample's picture; a class, so that it can be sent to a worker that was started afresh."""

    steps: Callable[[Any], Any]

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return the sample with its picture changed."""
        return sample | {"image": self.steps(sample["image"])}


def litdata(folder: Path, batch_size: int, workers: int) -> Iterable[Any]:
    """Its data set and loader; pictures arrive decoded to uint8 tensors, for torchvision's v2 transforms."""
    import torch
    from torchvision.transforms import v2

    module: Any = import_module("litdata")
    to_float = [v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.5] * 3)]
    steps = v2.Compose([v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip(), *to_float])
    data = module.StreamingDataset(str(folder), shuffle=True, drop_last=True, transform=OnImage(steps))
    loader: Iterable[Any] = module.StreamingDataLoader(data, batch_size=batch_size, num_workers=workers)
    return loader


def spdl(root: Path, batch_size: int, workers: int) -> Iterator[Any]:
    """Its pipeline of threads, as many as there would be workers; FFmpeg's filters crop, resize and mirror."""
    import torch
    from torchvision.transforms import RandomResizedCrop

    io: Any = import_module("spdl.io")
    pairs = pictures(root)
    io.demux_image(
        pairs[0][0]
    )  # where FFmpeg's libraries are missing, this says so; an error in a thread is hard to read
    random.shuffle(pairs)

    def decode(pair: Pair) -> Any:
        packets = io.demux_image(pair[0])
        shape = torch.empty((3, packets.codec.height, packets.codec.width), device="meta")  # holds no values
        top, left, height, width = RandomResizedCrop.get_params(shape, [0.08, 1.0], [3 / 4, 4 / 3])
        filters = f"crop={width}:{height}:{left}:{top},scale={SIZE}:{SIZE}:flags=bilinear"
        filters += ",hflip" * (random.random() < 0.5) + ",format=pix_fmts=rgb24"
        return io.decode_packets(packets, filter_desc=filters), pair[1]

    def batch(samples: Sequence[Any]) -> Any:
        frames, labels = zip(*samples, strict=True)
        return io.to_torch(io.convert_frames(list(frames))), torch.tensor(labels)

    builder = import_module("spdl.pipeline").PipelineBuilder().add_source(pairs).pipe(decode, concurrency=workers)
    builder = builder.aggregate(batch_size, drop_last=True).pipe(batch).add_sink(2 * workers)
    pipeline = builder.build(num_threads=workers, max_failures=0)
    with pipeline.auto_stop():
        yield from pipeline.get_iterator()


def grain(root: Path, batch_size: int, workers: int) -> Iterable[Any]:
    """A list of paths, shuffled, decoded and made into numpy batches (B, 224, 224, 3) of uint8 in its worker processes.

    Float32 from torch would be slower by far: its threads are as many as there are cores in each of these processes.
    """
    import numpy as np
    from PIL import Image
    from torchvision import transforms

    module: Any = import_module("grain.python")
    steps = transforms.Compose([transforms.RandomResizedCrop(SIZE), transforms.RandomHorizontalFlip()])

    def decode(pair: Pair) -> Any:
        return np.asarray(steps(Image.open(pair[0]).convert("RGB"))), pair[1]

    data = module.MapDataset.source(pictures(root)).shuffle(seed=0).map(decode).batch(batch_size, drop_remainder=True)
    stream = data.to_iter_dataset(module.ReadOptions(num_threads=0))
    options = module.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=2)
    batches: Iterable[Any] = stream.mp_prefetch(options)
    return batches


def write_arrow(folder: Path, pairs: Sequence[Pair]) -> None:
    """Write an Arrow table with Hugging Face datasets, the bytes of the files inside."""
    module: Any = import_module("datasets")
    paths, labels = zip(*pairs, strict=True)
    data = module.Dataset.from_dict({"image": list(paths), "label": list(labels)})
    data.cast_column("image", module.Image()).save_to_disk(str(folder))


def datasets(folder: Path, batch_size: int, workers: int) -> Iterable[Any]:
    """The Arrow table, decoded to Pillow pictures at access, and torch's loader."""
    from torch.utils.data import DataLoader

    steps = usual_steps()

    def change(rows: dict[str, Any]) -> dict[str, Any]:
        return rows | {"image": [steps(picture.convert("RGB")) for picture in rows["image"]]}

    data: Any = import_module("datasets").load_from_disk(str(folder)).with_transform(change)
    return DataLoader(data, batch_size, shuffle=True, drop_last=True, num_workers=workers)


STEPS = "torchvision.transforms"
PEERS = {
    "timm": Peer("timm", ["timm.data"], timm),
    "webdataset": Peer("webdataset", ["webdataset", STEPS], webdataset, write_tars),
    "streaming": Peer("mosaicml-streaming", ["streaming", "streaming.vision.base", STEPS], streaming, write_mds),
    "litdata": Peer("litdata", ["litdata", "torchvision.transforms.v2"], litdata, write_chunks),
    "spdl": Peer("spdl", ["spdl.io", "spdl.pipeline", STEPS], spdl),
    "grain": Peer("grain", ["grain.python", STEPS], grain),
    "datasets": Peer("datasets", ["datasets", STEPS], datasets, write_arrow),
}
