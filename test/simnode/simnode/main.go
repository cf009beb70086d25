// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Command simnode acts as the kubelets of the simulated machines below a
// directory; see package test/simnode.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/lockstep-dev/lockstep/test/simnode"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "simnode:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stderr io.Writer) error {
	set := flag.NewFlagSet("simnode", flag.ContinueOnError)
	set.SetOutput(stderr)
	kubeconfig := set.String("kubeconfig", "", "kubeconfig of a user who may write Nodes and leases")
	machines := set.String("machines", "", "directory with a directory for each machine, named as its Node")
	labels := map[string]string{}
	set.Func("label", "key=value for every Node; may be repeated", func(text string) error {
		key, value, ok := strings.Cut(text, "=")
		if !ok {
			return errors.New("want key=value")
		}
		labels[key] = value
		return nil
	})
	if err := set.Parse(args); err != nil {
		return err
	}
	if *kubeconfig == "" || *machines == "" {
		return errors.New("-kubeconfig and -machines are needed")
	}
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}
	config.QPS, config.Burst = 200, 400
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	encoder := zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig())
	log := zap.New(zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(stderr)), zapcore.InfoLevel))
	return simnode.Run(ctx, simnode.Config{Client: client, Root: *machines, Labels: labels, Now: time.Now, Log: log})
}
