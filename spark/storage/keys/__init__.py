"""Keys for AWS's services and for S3 servers, where the pipeline file has none: the usual chain.

`chain` is what others ask.  The order is that of AWS's own kit for Java, which Spark uses, so both halves of
a pipeline come to the same keys: environment, web identity, profile, container, instance metadata.
"""
