"""The GPU drill: everything that only a GPU can show, item by item, restartable. See `benchmarks/gpu_drill.py`.

`record`, `schedule`, `preflight`, `gates`, `report` and `items` need no installed package; items run in processes.
"""
