"""The step that brings the lake exactly to an LSN: pull, apply, publish, confirm.

Others import `advance`, `findings`, `gates`, `nonblocking` and `steps`.
"""
