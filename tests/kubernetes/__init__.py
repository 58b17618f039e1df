"""A Kubernetes for tests, on this machine alone: a real API server and etcd, and a small kubelet.

Pods are processes in mount namespaces of their own (`pods`), because no container can be run here.
"""
