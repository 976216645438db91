// Command coredns is the cluster's DNS server with few plugins: those that the test bed's own configuration and
// the upstream suite's configurations name. Leaving out the others saves most of the build.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
)

func main() {
	// A query goes through the plugins in this order.
	dnsserver.Directives = []string{
		"reload", "ready", "health",
		"errors", "log", "cache", "loadbalance",
		"hosts", "kubernetes",
	}
	coremain.Run()
}
