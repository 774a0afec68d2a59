"""Braid's Grafana dashboards as code."""
