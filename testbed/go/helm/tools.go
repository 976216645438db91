//go:build tools

// Package tools names the programs that are built, so that `go mod tidy` keeps what they need.
package tools

import (
	_ "helm.sh/helm/v4/cmd/helm"
)
