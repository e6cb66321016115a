"""The stubs of KEDA's interface for external scalers, made from `externalscaler.proto` by `make gen`. The rest of this
folder is generated."""
