"""Tests that others wrote, and workloads under kills; docs/proof.md says what they found."""
