# What slotlake and readers may do in the bucket, as policies of AWS. This module has no resources and needs no
# provider: attach its outputs to roles of yours (../aws.tf shows how).
terraform {
  required_version = ">= 1.5"
}

variable "bucket" {
  description = "The name of the bucket."
  type        = string
}

variable "prefixes" {
  description = "The prefixes that the pipeline uses: of lake.warehouse and of changelog.path, without a slash at the end."
  type        = list(string)
  validation {
    condition     = length(var.prefixes) > 0 && alltrue([for each in var.prefixes : !endswith(each, "/") && each != ""])
    error_message = "Give each prefix without a slash at its end, and not empty."
  }
}

variable "readable" {
  description = "The prefixes that readers of the lake may read: that of lake.warehouse."
  type        = list(string)
}

variable "kms_key" {
  description = "The ARN of the key of lake.storage.kms_key; empty: none."
  type        = string
  default     = ""
}

locals {
  arn     = "arn:aws:s3:::${var.bucket}"
  listed  = { for name, prefixes in { writer = var.prefixes, reader = var.readable } : name => [for each in prefixes : "${each}/*"] }
  objects = { for name, prefixes in { writer = var.prefixes, reader = var.readable } : name => [for each in prefixes : "${local.arn}/${each}/*"] }
  key = {
    writer = var.kms_key == "" ? [] : [{ Sid = "Key", Effect = "Allow", Action = ["kms:Decrypt", "kms:GenerateDataKey"], Resource = [var.kms_key] }]
    reader = var.kms_key == "" ? [] : [{ Sid = "Key", Effect = "Allow", Action = ["kms:Decrypt"], Resource = [var.kms_key] }]
  }
}

output "writer" {
  description = "The policy of slotlake and of Spark's executors."
  value = jsonencode({
    Version = "2012-10-17"
    Statement = concat([
      {
        Sid    = "Objects", Effect = "Allow", Resource = local.objects.writer
        Action = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
      },
      {
        Sid       = "List", Effect = "Allow", Resource = [local.arn], Action = ["s3:ListBucket"]
        Condition = { StringLike = { "s3:prefix" = local.listed.writer } }
      },
      # For `maintain`, which ends uploads that killed runs have left; this action knows no condition on a prefix.
      { Sid = "Uploads", Effect = "Allow", Resource = [local.arn], Action = ["s3:ListBucketMultipartUploads"] },
    ], local.key.writer)
  })
}

output "reader" {
  description = "The policy of programs that read the lake."
  value = jsonencode({
    Version = "2012-10-17"
    Statement = concat([
      { Sid = "Objects", Effect = "Allow", Resource = local.objects.reader, Action = ["s3:GetObject"] },
      {
        Sid       = "List", Effect = "Allow", Resource = [local.arn], Action = ["s3:ListBucket"]
        Condition = { StringLike = { "s3:prefix" = local.listed.reader } }
      },
    ], local.key.reader)
  })
}
