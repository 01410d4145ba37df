package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/log"
)

// runDNS is CoreDNS with the plugins that a cluster without a way out needs: it forwards nothing.
func runDNS() {
	dnsserver.Directives = []string{"bind", "errors", "log", "kubernetes"}
	coremain.Run()
}
