"""Kubernetes' own API server with its etcd, for tests, on this machine alone (`server`)."""
