// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is a component that runs as a child. The kernel kills it when the
// goroutine's thread that started it ends, which is when this program ends.
type process struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{} // closed when the child has been waited for
	err  error         // valid once done is closed

	mu   sync.Mutex
	gone bool
}

// startProcess starts argv with its output appended to dir/NAME.log.
func startProcess(name string, argv []string, dir string) (*process, error) {
	logPath := filepath.Join(dir, name+".log")
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", name, err)
	}
	cmd := exec.Command(argv[0], argv[1:]...) //nolint:noctx // the cluster ends it by its id, not by a context
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = dir
	// A separate process group keeps a Ctrl-C at the terminal from ending the
	// component before its owner has stopped what depends on it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	p := &process{name: name, log: logPath, cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go p.run(started, log)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// run starts the child and waits for it on one locked thread: the kernel sends
// the parent-death signal when the *thread* that forked ends (prctl(2)).
func (p *process) run(started chan<- error, log *os.File) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer func() { _ = log.Close() }()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	err = p.cmd.Wait()
	p.mu.Lock()
	p.gone, p.err = true, err
	p.mu.Unlock()
	close(p.done)
}

// signal sends sig unless the child has ended; it never hits a reused process
// id.
func (p *process) signal(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone {
		return nil
	}
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %v to %s: %w", sig, p.name, err)
	}
	return nil
}

// stop sends SIGTERM to the child, waits for grace, then kills it. It returns
// when the child has ended.
func (p *process) stop(grace time.Duration) error {
	err := p.signal(syscall.SIGTERM)
	// A stopped process (SIGSTOP) handles SIGTERM only after SIGCONT.
	err = errors.Join(err, p.signal(syscall.SIGCONT))
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
		return err
	case <-timer.C:
	}
	return errors.Join(err, p.kill())
}

// kill ends the child immediately and waits for it.
func (p *process) kill() error {
	err := p.signal(syscall.SIGKILL)
	<-p.done
	return err
}

// exited reports whether the child has ended, and how.
func (p *process) exited() (bool, error) {
	select {
	case <-p.done:
		return true, p.err
	default:
		return false, nil
	}
}

// tail returns the last lines of the child's log, for error messages.
func (p *process) tail(lines int) string {
	data, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	const enough = 16 << 10
	if len(data) > enough {
		data = data[len(data)-enough:]
	}
	all := bytes.Split(bytes.TrimRight(data, "\n"), []byte("\n"))
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	return string(bytes.Join(all, []byte("\n")))
}

// cpu is the CPU time of the process.
func (p *process) cpu() (time.Duration, error) { return CPUOf(p.cmd.Process.Pid) }

// CPUOf is the CPU time of a process, user and system.
func CPUOf(pid int) (time.Duration, error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, fmt.Errorf("read the accounting of process %d: %w", pid, err)
	}
	// proc_pid_stat(5): the command in parentheses may hold blanks; utime and
	// stime are fields 14 and 15, in ticks of 1/100 s on every Linux port.
	_, rest, ok := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 13 {
		return 0, fmt.Errorf("read the accounting of process %d: %q isn't a proc stat line", pid, stat)
	}
	var ticks int64
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read the accounting of process %d: %w", pid, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}
