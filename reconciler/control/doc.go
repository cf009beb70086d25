// SPDX-FileCopyrightText: The Lockstep authors
// SPDX-License-Identifier: Apache-2.0

// Package control holds what the controllers of the declared kinds share: status
// patches and conditions, events, metrics of objects, predicates, triggers, bound
// Secrets and errors with a condition reason. It imports no controller.
package control
