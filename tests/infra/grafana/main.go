// Reads a dashboard as Grafana's own types do; anything unknown, missing or wrong is an error.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

func main() {
	plugins.RegisterDefaultPlugins()
	content, err := io.ReadAll(os.Stdin)
	require(err)
	read := dashboard.Dashboard{}
	require(read.UnmarshalJSONStrict(content))
	require(read.Validate())
}

func require(err error) {
	// An empty list of errors is an error that is not nil.
	if err != nil && err.Error() != "" {
		fmt.Println(err)
		os.Exit(1)
	}
}
