//go:build tools

package tools

import (
	_ "github.com/yuin/gopher-lua/cmd/glua"
)
