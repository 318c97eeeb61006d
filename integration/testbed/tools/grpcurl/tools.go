//go:build tools

package tools

import _ "github.com/fullstorydev/grpcurl/cmd/grpcurl"
