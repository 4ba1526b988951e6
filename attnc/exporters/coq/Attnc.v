(* Softmax heads over the reals, and the lemmas that the files of attnc.export need.

   Stored numbers are rationals (Q), written as the hexadecimal floats that they are. *)
From Coq Require Import QArith Qreals Reals List Lra Lia Psatz.
From Coquelicot Require Import Coquelicot.
From Interval Require Import Tactic.
Import ListNotations.
Open Scope R_scope.

(** * Heads *)

(* An anchor: its key (slope, offset) and its value (gate, value). *)
Record anchor := Anchor { slope : Q; offset : Q; gate : Q; value : Q }.

(* A head: its query (scale, shift), its output weight and its anchors. *)
Record head := Head { scale : Q; shift : Q; output : Q; anchors : list anchor }.

Definition sum {A} (g : A -> R) (l : list A) : R := fold_right (fun a rest => g a + rest) 0 l.

(* The score of an anchor for the query x, and the value that it contributes. *)
Definition score (x : R) (a : anchor) : R := Q2R (slope a) * x + Q2R (offset a).
Definition contribution (s : R) (a : anchor) : R := Q2R (gate a) * s + Q2R (value a).

(* output * (softmax-weighted mean of the values) *)
Definition attention (h : head) (s : R) : R :=
  let x := Q2R (scale h) * s + Q2R (shift h) in
  Q2R (output h) * (sum (fun a => exp (score x a) * contribution s a) (anchors h) / sum (fun a => exp (score x a)) (anchors h)).

Definition network (model : list head) (s : R) : R := sum (fun h => attention h s) model.

(** * Sums *)

Lemma sum_scaled : forall A c (g g' : A -> R) l, (forall a, g a = c * g' a) -> sum g l = c * sum g' l.
Proof. intros A c g g' l E; induction l as [|a l IH]; simpl; [ring|rewrite E, IH; ring]. Qed.

Lemma sum_pos : forall A (g : A -> R) l, (forall a, 0 < g a) -> l <> [] -> 0 < sum g l.
Proof.
  intros A g l P N; destruct l as [|a l]; [congruence|clear N].
  revert a; induction l as [|b l IH]; intros a; simpl; [generalize (P a); lra|].
  generalize (IH b) (P a); simpl; lra.
Qed.

Lemma sum_nonneg : forall A (g : A -> R) l, (forall a, 0 <= g a) -> 0 <= sum g l.
Proof. intros A g l P; induction l as [|a l IH]; simpl; [lra|generalize (P a); lra]. Qed.

Lemma sum_le : forall A (g g' : A -> R) l, (forall a, In a l -> g a <= g' a) -> sum g l <= sum g' l.
Proof.
  intros A g g' l P; induction l as [|a l IH]; simpl; [lra|].
  assert (g a <= g' a) by (apply P; left; reflexivity).
  assert (sum g l <= sum g' l) by (apply IH; intros b B; apply P; right; exact B); lra.
Qed.

Lemma sum_abs : forall A (g : A -> R) l, Rabs (sum g l) <= sum (fun a => Rabs (g a)) l.
Proof.
  intros A g l; induction l as [|a l IH]; simpl; [rewrite Rabs_R0; lra|].
  apply Rle_trans with (1 := Rabs_triang _ _); lra.
Qed.

Lemma sum_const : forall A (c : R) (l : list A), sum (fun _ => c) l = INR (length l) * c.
Proof. intros A c l; induction l as [|a l IH]; [simpl; ring|cbn [sum fold_right length]; fold (@sum A (fun _ => c) l); rewrite IH, S_INR; ring]. Qed.

Lemma sum_map : forall A B (f : A -> B) (g : B -> R) l, sum g (map f l) = sum (fun a => g (f a)) l.
Proof. intros A B f g l; induction l as [|a l IH]; simpl; [reflexivity|rewrite IH; reflexivity]. Qed.

(** * A head around a point, with the scores relative to those of one anchor *)

(* exp (rate * (s - m) + level) * (gain * s + base) *)
Record term := Term { rate : Q; level : Q; gain : Q; base : Q }.

Definition power (m : Q) (s : R) (t : term) : R := Q2R (rate t) * (s - Q2R m) + Q2R (level t).
Definition content (s : R) (t : term) : R := Q2R (gain t) * s + Q2R (base t).
Definition upper (m : Q) (l : list term) (s : R) : R := sum (fun t => exp (power m s t) * content s t) l.
Definition lower (m : Q) (l : list term) (s : R) : R := sum (fun t => exp (power m s t)) l.

(* The score of a as a function of s is  key*s + level; minus that of the reference r; around m. *)
Definition relative (h : head) (m : Q) (r a : anchor) : term :=
  let rate := ((slope a - slope r) * scale h)%Q in
  let level := ((slope a - slope r) * shift h + (offset a - offset r))%Q in
  Term (Qred rate) (Qred (rate * m + level)%Q) (Qred (gate a)) (Qred (value a)).

Definition relatives (h : head) (m : Q) (r : anchor) : list term := map (relative h m r) (anchors h).

Lemma Q2R_red : forall q, Q2R (Qred q) = Q2R q.
Proof. intros q; apply Qeq_eqR, Qred_correct. Qed.

Ltac to_R := repeat first [rewrite Q2R_red | rewrite Q2R_plus | rewrite Q2R_mult | rewrite Q2R_minus | rewrite Q2R_opp].

Lemma power_relative : forall h m r a s,
  score (Q2R (scale h) * s + Q2R (shift h)) a
  = score (Q2R (scale h) * s + Q2R (shift h)) r + power m s (relative h m r a).
Proof. intros; unfold score, power, relative; cbn [rate level]; to_R; ring. Qed.

Lemma exp_pos_ne : forall x, exp x <> 0.
Proof. intros x; apply Rgt_not_eq, exp_pos. Qed.

Lemma attention_relative : forall h m r s, anchors h <> [] ->
  attention h s = Q2R (output h) * (upper m (relatives h m r) s / lower m (relatives h m r) s).
Proof.
  intros h m r s N; unfold attention, upper, lower, relatives; cbv zeta; rewrite !sum_map.
  set (x := Q2R (scale h) * s + Q2R (shift h)); set (e := exp (score x r)).
  rewrite (sum_scaled _ e (fun a => exp (score x a) * contribution s a) (fun a => exp (power m s (relative h m r a)) * content s (relative h m r a))).
  2:{ intros a; unfold e, x; rewrite (power_relative h m r a), exp_plus.
      unfold contribution, content, relative; cbn [gain base]; to_R; ring. }
  rewrite (sum_scaled _ e (fun a => exp (score x a)) (fun a => exp (power m s (relative h m r a)))).
  2:{ intros a; unfold e, x; rewrite (power_relative h m r a), exp_plus; ring. }
  assert (0 < e) by apply exp_pos.
  assert (0 < sum (fun a => exp (power m s (relative h m r a))) (anchors h))
    by (apply sum_pos; [intros; apply exp_pos|exact N]).
  field; split; lra.
Qed.

(** * Negligible anchors *)

Fixpoint keep {A} (mask : list bool) (l : list A) : list A :=
  match mask, l with
  | _, [] => []
  | [], _ => []
  | true :: mask, a :: l => a :: keep mask l
  | false :: mask, _ :: l => keep mask l
  end.

Fixpoint drop {A} (mask : list bool) (l : list A) : list A :=
  match mask, l with
  | _, [] => []
  | [], l => l
  | true :: mask, _ :: l => drop mask l
  | false :: mask, a :: l => a :: drop mask l
  end.

(* n anchors from the i-th on *)
Definition those (i n : nat) : list bool := repeat false i ++ repeat true n.

Lemma sum_split : forall A (g : A -> R) mask l, sum g l = sum g (keep mask l) + sum g (drop mask l).
Proof.
  intros A g mask; induction mask as [|[] mask IH]; intros [|a l]; simpl; try ring; rewrite (IH l); ring.
Qed.

(* Which anchor is the reference, which anchors are kept, around which point, and how far below 0 the powers of the others are. *)
Record part := Part { reference : nat; mask : list bool; centre : Q; gap : Q }.

Definition referred (h : head) (p : part) : anchor := nth (reference p) (anchors h) (Anchor 0 0 0 0).

Definition kept (h : head) (p : part) : list term := keep (mask p) (relatives h (centre p) (referred h p)).
Definition dropped (h : head) (p : part) : list term := drop (mask p) (relatives h (centre p) (referred h p)).

Definition power_at (p : part) (s : Q) (t : term) : Q := (rate t * (s - centre p) + level t)%Q.
Definition largest (a b : Q) (l : list term) : Q :=
  let reach := (Qabs.Qabs a + Qabs.Qabs b)%Q in
  fold_right (fun t rest => Qabs.Qabs (gain t) * reach + Qabs.Qabs (base t) + rest)%Q 0%Q l.

Definition is_unit (t : term) : bool := Qeq_bool (rate t) 0 && Qeq_bool (level t) 0.

Definition fits (a b : Q) (h : head) (p : part) : bool :=
  existsb is_unit (kept h p)
  && forallb (fun t => Qle_bool (power_at p a t) (- gap p) && Qle_bool (power_at p b t) (- gap p)) (dropped h p).

Definition near (h : head) (p : part) (s : R) : R :=
  Q2R (output h) * (upper (centre p) (kept h p) s / lower (centre p) (kept h p) s).

(* A bound of |attention - near| on [a, b]: its rational part, times exp (- gap). *)
Definition left_out (a b : Q) (h : head) (p : part) : Q :=
  Qred (Qabs.Qabs (output h) * inject_Z (Z.of_nat (length (dropped h p))) * (largest a b (kept h p) + largest a b (dropped h p)))%Q.

Lemma power_Q : forall p s t, power (centre p) (Q2R s) t = Q2R (power_at p s t).
Proof. intros; unfold power, power_at; to_R; reflexivity. Qed.

Lemma power_between : forall m t a b s, a <= s <= b -> power m s t <= Rmax (power m a t) (power m b t).
Proof.
  intros m t a b s H; unfold power; destruct (Rle_or_lt 0 (Q2R (rate t))) as [P|P].
  - apply Rle_trans with (2 := Rmax_r _ _); nra.
  - apply Rle_trans with (2 := Rmax_l _ _); nra.
Qed.

Lemma Q2R_abs : forall q, Q2R (Qabs.Qabs q) = Rabs (Q2R q).
Proof.
  intros q; apply Qabs.Qabs_case; intros H; apply Qle_Rle in H; rewrite RMicromega.Q2R_0 in H.
  - rewrite Rabs_pos_eq; [reflexivity|exact H].
  - rewrite Q2R_opp, Rabs_left1; [reflexivity|exact H].
Qed.

Lemma content_le : forall a b t s, Q2R a <= s <= Q2R b ->
  Rabs (content s t) <= Q2R (Qabs.Qabs (gain t) * (Qabs.Qabs a + Qabs.Qabs b) + Qabs.Qabs (base t)).
Proof.
  intros a b t s H; unfold content; to_R; rewrite !Q2R_abs.
  apply Rle_trans with (1 := Rabs_triang _ _), Rplus_le_compat_r; rewrite Rabs_mult.
  apply Rmult_le_compat_l; [apply Rabs_pos|].
  generalize (Rle_abs (Q2R b)) (Rle_abs (- Q2R a)) (Rabs_pos (Q2R a)) (Rabs_pos (Q2R b)); rewrite Rabs_Ropp.
  revert H; generalize (Q2R a) (Q2R b); intros x y H B A A0 B0; apply Rabs_le; split; lra.
Qed.

Lemma largest_nonneg : forall a b l, 0 <= Q2R (largest a b l).
Proof.
  intros a b l; unfold largest; cbv zeta; induction l as [|t l IH]; cbn [fold_right]; [rewrite RMicromega.Q2R_0; lra|].
  revert IH; to_R; rewrite !Q2R_abs; intros IH.
  generalize (Rabs_pos (Q2R (gain t))) (Rabs_pos (Q2R a)) (Rabs_pos (Q2R b)) (Rabs_pos (Q2R (base t))); intros; nra.
Qed.

Lemma content_largest : forall a b l t s, Q2R a <= s <= Q2R b -> In t l -> Rabs (content s t) <= Q2R (largest a b l).
Proof.
  intros a b l t s H; induction l as [|u l IH]; [contradiction|]; intros [E|I].
  - subst u; unfold largest; cbv zeta; cbn [fold_right]; rewrite Q2R_plus; fold (largest a b l).
    generalize (content_le a b t s H) (largest_nonneg a b l); unfold largest; cbv zeta; lra.
  - unfold largest; cbv zeta; cbn [fold_right]; rewrite Q2R_plus; specialize (IH I).
    generalize (content_le a b u s H) (Rabs_pos (content s u)); unfold largest in IH; cbv zeta in IH; lra.
Qed.

Lemma lower_unit : forall m l s, existsb is_unit l = true -> 1 <= lower m l s.
Proof.
  intros m l s; induction l as [|t l IH]; simpl; [discriminate|]; intros E.
  assert (N : 0 <= lower m l s) by (apply sum_nonneg; intros; left; apply exp_pos).
  apply Bool.orb_true_iff in E; destruct E as [E|E].
  - unfold is_unit in E; apply Bool.andb_true_iff in E; destruct E as [K L].
    apply Qeq_bool_eq, Qeq_eqR in K, L; rewrite RMicromega.Q2R_0 in K, L.
    unfold lower in *; simpl; unfold power at 1; rewrite K, L.
    replace (0 * (s - Q2R m) + 0) with 0 by ring; rewrite exp_0; lra.
  - unfold lower in *; simpl; generalize (IH E) (exp_pos (power m s t)); lra.
Qed.

Lemma upper_le : forall m l s V, (forall t, In t l -> Rabs (content s t) <= V) -> Rabs (upper m l s) <= V * lower m l s.
Proof.
  intros m l s V H; unfold upper, lower.
  apply Rle_trans with (1 := sum_abs _ _ _).
  rewrite <- (sum_scaled _ V (fun t => V * exp (power m s t)) (fun t => exp (power m s t))) by (intros; ring).
  apply sum_le; intros t I; rewrite Rabs_mult, (Rabs_pos_eq (exp _)) by (left; apply exp_pos).
  rewrite Rmult_comm; apply Rmult_le_compat_r; [left; apply exp_pos|apply H, I].
Qed.

Lemma near_attention : forall a b h p s, Q2R a <= s <= Q2R b -> fits a b h p = true ->
  Rabs (attention h s - near h p s) <= Q2R (left_out a b h p) * exp (- Q2R (gap p)).
Proof.
  intros a b h p s H F; unfold fits in F; apply Bool.andb_true_iff in F; destruct F as [U F].
  assert (N : anchors h <> []).
  { intros E; unfold kept, relatives in U; rewrite E in U; destruct (mask p) as [|[]]; discriminate U. }
  rewrite (attention_relative h (centre p) (referred h p) s N); unfold near, left_out.
  replace (upper (centre p) (relatives h (centre p) (referred h p)) s)
    with (upper (centre p) (kept h p) s + upper (centre p) (dropped h p) s) by (symmetry; apply sum_split).
  replace (lower (centre p) (relatives h (centre p) (referred h p)) s)
    with (lower (centre p) (kept h p) s + lower (centre p) (dropped h p) s) by (symmetry; apply sum_split).
  assert (L : 1 <= lower (centre p) (kept h p) s) by (apply lower_unit, U).
  assert (D : 0 <= lower (centre p) (dropped h p) s) by (apply sum_nonneg; intros; left; apply exp_pos).
  assert (DT : lower (centre p) (dropped h p) s <= INR (length (dropped h p)) * exp (- Q2R (gap p))).
  { rewrite <- sum_const; apply sum_le; intros t I.
    rewrite forallb_forall in F; specialize (F t I); apply Bool.andb_true_iff in F; destruct F as [FA FB].
    apply Qle_bool_imp_le, Qle_Rle in FA, FB; rewrite <- power_Q, Q2R_opp in FA, FB.
    assert (Z : power (centre p) s t <= - Q2R (gap p))
      by (apply Rle_trans with (1 := power_between _ t _ _ s H); apply Rmax_lub; assumption).
    destruct Z as [Z|Z]; [left; apply exp_increasing, Z|right; rewrite Z; reflexivity]. }
  assert (UK := upper_le (centre p) (kept h p) s _ (fun t => content_largest a b _ t s H)).
  assert (UD := upper_le (centre p) (dropped h p) s _ (fun t => content_largest a b _ t s H)).
  assert (VK := largest_nonneg a b (kept h p)); assert (VD := largest_nonneg a b (dropped h p)).
  set (n := upper (centre p) (kept h p) s) in *; set (d := lower (centre p) (kept h p) s) in *.
  set (nr := upper (centre p) (dropped h p) s) in *; set (dr := lower (centre p) (dropped h p) s) in *.
  set (V := Q2R (largest a b (kept h p))) in *; set (W := Q2R (largest a b (dropped h p))) in *.
  to_R; rewrite Q2R_abs; fold V W.
  replace (Q2R (inject_Z (Z.of_nat (length (dropped h p))))) with (INR (length (dropped h p)))
    by (rewrite INR_IZR_INZ; unfold inject_Z, Q2R; simpl; field).
  replace (Q2R (output h) * ((n + nr) / (d + dr)) - Q2R (output h) * (n / d))
    with (Q2R (output h) * ((nr - n / d * dr) / (d + dr))) by (field; lra).
  rewrite Rabs_mult, !Rmult_assoc; apply Rmult_le_compat_l; [apply Rabs_pos|].
  assert (G : Rabs (n / d) <= V).
  { unfold Rdiv; rewrite Rabs_mult, Rabs_inv, (Rabs_pos_eq d) by lra.
    apply Rmult_le_reg_r with d; [lra|]; rewrite Rmult_assoc, Rinv_l, Rmult_1_r by lra; exact UK. }
  assert (T : Rabs (nr - n / d * dr) <= (V + W) * dr).
  { unfold Rminus; apply Rle_trans with (1 := Rabs_triang _ _); rewrite Rabs_Ropp, Rabs_mult, (Rabs_pos_eq dr) by lra; nra. }
  unfold Rdiv at 1; rewrite Rabs_mult, Rabs_inv, (Rabs_pos_eq (d + dr)) by lra.
  apply Rle_trans with (Rabs (nr - n / d * dr)).
  - rewrite <- (Rmult_1_r (Rabs (nr - n / d * dr))) at 2; apply Rmult_le_compat_l; [apply Rabs_pos|].
    rewrite <- Rinv_1; apply Rinv_le_contravar; lra.
  - apply Rle_trans with (1 := T).
    replace (INR (length (dropped h p)) * ((V + W) * exp (- Q2R (gap p))))
      with ((V + W) * (INR (length (dropped h p)) * exp (- Q2R (gap p)))) by ring.
    apply Rmult_le_compat_l; lra.
Qed.

(** * Stretches of the domain *)

(* The same in a form that computes: constants are quotients of integers, and what is 0 or 1 is left out. *)
Definition number (q : Q) : R :=
  match Qden q with 1%positive => IZR (Qnum q) | d => IZR (Qnum q) / IZR (Zpos d) end.
Definition times (k : Q) (x : R) : R :=
  match k with (1 # 1)%Q => x | (-1 # 1)%Q => - x | _ => number k * x end.
Definition line (k c : Q) (x : R) : R :=
  match Qnum k, Qnum c with Z0, _ => number c | _, Z0 => times k x | _, _ => times k x + number c end.
Definition from (m : Q) (s : R) : R := match Qnum m with Z0 => s | _ => s - number m end.
Definition unit_or (t : term) (e : R) : R := match Qnum (rate t), Qnum (level t) with Z0, Z0 => 1 | _, _ => e end.
Definition weight (m : Q) (s : R) (t : term) : R := unit_or t (exp (line (rate t) (level t) (from m s))).
Definition product (m : Q) (s : R) (t : term) : R :=
  match Qnum (rate t), Qnum (level t), Qnum (gain t), Qnum (base t) with
  | _, _, Z0, Z0 => 0
  | Z0, Z0, _, _ => line (gain t) (base t) s
  | _, _, _, _ => line (gain t) (base t) s * weight m s t
  end.
Fixpoint add (l : list R) : R := match l with [] => 0 | [x] => x | x :: l => x + add l end.
Definition quotient (m : Q) (l : list term) (s : R) : R := add (map (product m s) l) / add (map (weight m s) l).

Lemma number_Q : forall q, number q = Q2R q.
Proof. intros [n d]; unfold number, Q2R; cbn [Qnum Qden]; destruct d; try reflexivity; field. Qed.

Lemma Q2R_Z0 : forall q, Qnum q = Z0 -> Q2R q = 0.
Proof. intros [n d] E; cbn [Qnum] in E; subst n; unfold Q2R; simpl; ring. Qed.

Lemma times_Q : forall k x, times k x = Q2R k * x.
Proof.
  intros [n d] x; unfold times.
  destruct n as [|[n|n|]|[n|n|]], d as [d|d|]; rewrite ?number_Q; try reflexivity; unfold Q2R; cbn [Qnum Qden]; field.
Qed.

Lemma line_Q : forall k c x, line k c x = Q2R k * x + Q2R c.
Proof.
  intros k c x; unfold line; destruct (Qnum k) eqn:K, (Qnum c) eqn:C;
    rewrite ?times_Q, ?number_Q, ?(Q2R_Z0 _ K), ?(Q2R_Z0 _ C); ring.
Qed.

Lemma from_Q : forall m s, from m s = s - Q2R m.
Proof.
  intros m s; unfold from; destruct (Qnum m) eqn:E; rewrite ?number_Q, ?(Q2R_Z0 _ E); ring.
Qed.

Lemma weight_Q : forall m s t, weight m s t = exp (power m s t).
Proof.
  intros m s t; unfold weight, unit_or, power; rewrite line_Q, from_Q.
  destruct (Qnum (rate t)) eqn:K, (Qnum (level t)) eqn:L; try reflexivity.
  rewrite (Q2R_Z0 _ K), (Q2R_Z0 _ L), Rmult_0_l, Rplus_0_l, exp_0; reflexivity.
Qed.

Lemma product_Q : forall m s t, product m s t = exp (power m s t) * content s t.
Proof.
  intros m s t; rewrite <- weight_Q; unfold product, content; rewrite line_Q.
  assert (U : Qnum (rate t) = Z0 -> Qnum (level t) = Z0 -> weight m s t = 1)
    by (intros K L; unfold weight, unit_or; rewrite K, L; reflexivity).
  destruct (Qnum (rate t)) eqn:K, (Qnum (level t)) eqn:L, (Qnum (gain t)) eqn:G, (Qnum (base t)) eqn:B;
    rewrite ?(U eq_refl eq_refl), ?(Q2R_Z0 _ G), ?(Q2R_Z0 _ B); ring.
Qed.

Lemma add_sum : forall A (g : A -> R) l, add (map g l) = sum g l.
Proof.
  intros A g l; induction l as [|a l IH]; [reflexivity|].
  simpl; rewrite <- IH; destruct l; simpl; ring.
Qed.

Lemma quotient_Q : forall m l s, quotient m l s = upper m l s / lower m l s.
Proof.
  intros m l s; unfold quotient, upper, lower; rewrite !add_sum.
  rewrite (sum_scaled _ 1 (product m s) (fun t => exp (power m s t) * content s t)) by (intros; rewrite product_Q; ring).
  rewrite (sum_scaled _ 1 (weight m s) (fun t => exp (power m s t))) by (intros; rewrite weight_Q; ring).
  rewrite !Rmult_1_l; reflexivity.
Qed.

(* What the proof of a stretch is about: for each head its output weight, its centre and the terms that are kept. *)
Definition plan (model : list head) (parts : list part) : list (Q * Q * list term) :=
  map (fun hp => (Qred (output (fst hp)), Qred (centre (snd hp)), kept (fst hp) (snd hp))) (combine model parts).
Definition planned (l : list (Q * Q * list term)) (s : R) : R :=
  add (map (fun t => match t with (o, m, l) => times o (quotient m l s) end) l).

Definition fit (a b : Q) (model : list head) (parts : list part) : bool :=
  Nat.eqb (length model) (length parts) && forallb (fun hp => fits a b (fst hp) (snd hp)) (combine model parts).

Definition slack (a b : Q) (model : list head) (parts : list part) : list (Q * Q) :=
  filter (fun t => negb (Qeq_bool (fst t) 0)) (map (fun hp => (left_out a b (fst hp) (snd hp), gap (snd hp))) (combine model parts)).
Definition remainder (l : list (Q * Q)) : R := add (map (fun t => number (fst t) * exp (- number (snd t))) l).

Lemma upper_centre : forall m l s, upper (Qred m) l s = upper m l s.
Proof. intros; unfold upper; f_equal; unfold power; rewrite Q2R_red; reflexivity. Qed.
Lemma lower_centre : forall m l s, lower (Qred m) l s = lower m l s.
Proof. intros; unfold lower; f_equal; unfold power; rewrite Q2R_red; reflexivity. Qed.

Lemma remainder_filter : forall l,
  remainder (filter (fun t => negb (Qeq_bool (fst t) 0)) l) = sum (fun t => Q2R (fst t) * exp (- Q2R (snd t))) l.
Proof.
  intros l; unfold remainder; rewrite add_sum; induction l as [|[x g] l IH]; [reflexivity|]; simpl.
  destruct (Qeq_bool x 0) eqn:E; simpl; rewrite IH; [|rewrite !number_Q; reflexivity].
  apply Qeq_bool_eq, Qeq_eqR in E; rewrite RMicromega.Q2R_0 in E; rewrite E; ring.
Qed.

Lemma network_near : forall model parts a b s, fit a b model parts = true -> Q2R a <= s <= Q2R b ->
  Rabs (network model s - planned (plan model parts) s) <= remainder (slack a b model parts).
Proof.
  intros model parts a b s F H; unfold fit in F; apply Bool.andb_true_iff in F; destruct F as [E F].
  apply Nat.eqb_eq in E; unfold slack; rewrite remainder_filter, sum_map; cbn [fst snd].
  unfold planned, plan, network; rewrite add_sum, sum_map.
  revert parts E F; induction model as [|h model IH]; intros [|p parts] E F; try discriminate E.
  - simpl; rewrite Rminus_0_r, Rabs_R0; lra.
  - cbn [combine forallb fst snd] in F; apply Bool.andb_true_iff in F; destruct F as [F0 F].
    injection E as E; specialize (IH parts E F); cbn [combine sum fold_right fst snd] in IH |- *.
    rewrite times_Q, quotient_Q, upper_centre, lower_centre, Q2R_red; fold (near h p s).
    assert (N := near_attention a b h p s H F0).
    match goal with |- Rabs (?x + ?y - (?z + ?w)) <= _ => replace (x + y - (z + w)) with ((x - z) + (y - w)) by ring end.
    apply Rle_trans with (1 := Rabs_triang _ _), Rplus_le_compat; [exact N|exact IH].
Qed.

(* The error of the network on [a, b], from that of the planned quotients. *)
Theorem stretch : forall model parts a b (f : R -> R) (eps e : R),
  fit a b model parts = true -> remainder (slack a b model parts) + e <= eps ->
  (forall s, Q2R a <= s <= Q2R b -> Rabs (planned (plan model parts) s - f s) <= e) ->
  forall s, Q2R a <= s <= Q2R b -> Rabs (network model s - f s) <= eps.
Proof.
  intros model parts a b f eps e F E P s H.
  replace (network model s - f s) with ((network model s - planned (plan model parts) s) + (planned (plan model parts) s - f s)) by ring.
  apply Rle_trans with (1 := Rabs_triang _ _), Rle_trans with (2 := E), Rplus_le_compat; [apply network_near; assumption|apply P, H].
Qed.

Lemma join : forall (P : R -> Prop) a b c,
  (forall s, a <= s <= b -> P s) -> (forall s, b <= s <= c -> P s) -> forall s, a <= s <= c -> P s.
Proof. intros P a b c L U s H; destruct (Rle_or_lt s b); [apply L|apply U]; lra. Qed.

Lemma constant : forall q, Q2R q = number (Qred q).
Proof. intros q; rewrite number_Q, Q2R_red; reflexivity. Qed.

Lemma between : forall a b s, Q2R a <= s <= Q2R b -> number (Qred a) <= s <= number (Qred b).
Proof. intros a b s H; rewrite !number_Q, !Q2R_red; exact H. Qed.

Ltac computed x := let y := eval vm_compute in x in replace x with y by (vm_compute; reflexivity).
Ltac computed_in x H := let y := eval vm_compute in x in replace x with y in H by (vm_compute; reflexivity).

(* The hypothesis of a stretch, and its goal, as inequalities between expressions that the tactic interval reads. *)
Ltac numeric H :=
  apply between in H;
  match type of H with number (Qred ?a) <= _ <= number (Qred ?b) => computed_in (Qred a) H; computed_in (Qred b) H end;
  cbv [number Qnum Qden] in H.
Ltac constants :=
  repeat match goal with |- context [Q2R ?e] => rewrite (constant e); computed (Qred e) end; cbv [number Qnum Qden].
Ltac explicit :=
  match goal with |- context [plan ?m ?p] => computed (plan m p) end;
  match goal with |- _ <= Q2R ?e => rewrite (constant e); computed (Qred e) end;
  cbv [planned add map quotient product weight unit_or line times number from Qnum Qden Qopp Z.opp rate level gain base].

(* With the variable t = s - m, of which lo <= t <= hi is known: no rounding of s near m is multiplied by steep slopes. *)
Ltac recentre t m lo hi :=
  let value q := let c := eval vm_compute in (Qred q) in eval cbv [number Qnum Qden] in (number c) in
  let m := value m in let lo := value lo in let hi := value hi in
  match goal with H : _ <= ?s <= _ |- _ =>
    let E := fresh "E" in let D := fresh "D" in
    remember (s - m) as t eqn:D; assert (E : s = t + m) by lra; clear D; assert (lo <= t <= hi) by lra; clear H; subst s
  end.

(* remainder (slack ...) + e <= eps *)
Ltac small :=
  match goal with |- remainder ?x + _ <= _ => computed x end;
  constants; cbv [remainder add map number Qnum Qden fst snd];
  first [lra | interval with (i_prec 100)].

(** * Functions: forms for each branch, in which nothing large is subtracted *)

Lemma tanh_left : forall s, tanh s = 1 - 2 / (exp (2 * s) + 1).
Proof.
  intros s; unfold tanh, sinh, cosh; replace (2 * s) with (s + s) by ring; rewrite exp_plus, exp_Ropp.
  generalize (exp_pos s); intros; field; repeat split; nra.
Qed.

Lemma tanh_right : forall s, tanh s = 2 / (1 + exp (- (2 * s))) - 1.
Proof.
  intros s; unfold tanh, sinh, cosh; replace (- (2 * s)) with (- s + - s) by ring; rewrite exp_plus, exp_Ropp.
  generalize (exp_pos s); intros; field; repeat split; nra.
Qed.

Lemma nothing : forall x, 0 / x = 0.
Proof. intros x; unfold Rdiv; ring. Qed.

Lemma gate_left : forall y x, y / (1 + exp (- x)) = y * (exp x / (1 + exp x)).
Proof. intros y x; rewrite exp_Ropp; generalize (exp_pos x); intros; field; lra. Qed.

Lemma half_tanh_left : forall y x, y / 2 * (1 + tanh x) = y * (exp (2 * x) / (1 + exp (2 * x))).
Proof. intros y x; rewrite tanh_left; generalize (exp_pos (2 * x)); intros; field; lra. Qed.

Lemma half_tanh_right : forall y x, y / 2 * (1 + tanh x) = y / (1 + exp (- (2 * x))).
Proof. intros y x; rewrite tanh_right; generalize (exp_pos (- (2 * x))); intros; field; lra. Qed.

Lemma softplus_right : forall x, ln (1 + exp x) = x + ln (1 + exp (- x)).
Proof.
  intros x; rewrite <- (ln_exp x) at 2; rewrite <- ln_mult; [|apply exp_pos|generalize (exp_pos (- x)); lra].
  f_equal; rewrite Rmult_plus_distr_l, <- exp_plus, Rplus_opp_r, exp_0; ring.
Qed.

Lemma mish_left : forall s, s * tanh (ln (1 + exp s)) = s * (exp s * (exp s + 2) / (exp s * (exp s + 2) + 2)).
Proof.
  intros s; f_equal; unfold tanh, sinh, cosh; rewrite exp_Ropp, exp_ln by (generalize (exp_pos s); lra).
  generalize (exp_pos s); intros; field; repeat split; nra.
Qed.

Lemma mish_right : forall s,
  s * tanh (ln (1 + exp s)) = s * ((1 + 2 * exp (- s)) / (1 + 2 * exp (- s) * (1 + exp (- s)))).
Proof.
  intros s; rewrite mish_left, exp_Ropp; generalize (exp_pos s); intros; field; repeat split; nra.
Qed.

(** * The normal distribution function, by polynomials *)

Definition phi (t : R) : R := exp (- (t * t) / 2) / sqrt (2 * PI).
Definition Phi (s : R) : R := 1 / 2 + RInt phi 0 s.

Lemma phi_continuous : forall t, continuous phi t.
Proof.
  intros t; apply (ex_derive_continuous phi); unfold phi; auto_derive.
  repeat split; try exact I; apply Rgt_not_eq, sqrt_lt_R0; generalize PI_RGT_0; lra.
Qed.

Lemma Phi_derive : forall s, is_derive Phi s (phi s).
Proof.
  intros s; unfold Phi.
  replace (phi s) with (plus zero (phi s)) by apply plus_zero_l.
  apply (is_derive_plus (fun _ => 1 / 2) (fun s => RInt phi 0 s)); [exact (@is_derive_const R_AbsRing R_NormedModule (1 / 2) s)|].
  apply (is_derive_RInt phi (fun b => RInt phi 0 b) 0 s); [|apply phi_continuous].
  exists (mkposreal 1 Rlt_0_1); intros b _.
  apply (@RInt_correct R_CompleteNormedModule), (@ex_RInt_continuous R_CompleteNormedModule); intros; apply phi_continuous.
Qed.

Lemma Phi_0 : Phi 0 = 1 / 2.
Proof. unfold Phi; rewrite RInt_point; unfold zero; simpl; ring. Qed.

(* By the mean value theorem: F - P at s, from F - P at m and from F' - P' between. *)
Lemma by_derivative : forall (F P F' P' : R -> R) m a b e0 e1 s,
  (forall t, is_derive F t (F' t)) -> (forall t, is_derive P t (P' t)) ->
  a <= m <= b -> a <= s <= b ->
  Rabs (F m - P m) <= e0 -> (forall t, a <= t <= b -> Rabs (F' t - P' t) <= e1) ->
  Rabs (F s - P s) <= e0 + e1 * (b - a).
Proof.
  intros F P F' P' m a b e0 e1 s DF DP Hm Hs H0 H1.
  destruct (MVT_gen (fun t => minus (F t) (P t)) m s (fun t => minus (F' t) (P' t))) as [c [Hc E]].
  - intros t _; apply (is_derive_minus F P); auto.
  - intros t _; apply continuity_pt_filterlim, (ex_derive_continuous (fun t => minus (F t) (P t))).
    eexists; apply (is_derive_minus F P); auto.
  - unfold minus, plus, opp in E; simpl in E.
    assert (C : a <= c <= b) by (revert Hc; unfold Rmin, Rmax; destruct (Rle_dec m s); lra).
    specialize (H1 c C).
    replace (F s - P s) with ((F m - P m) + (F' c - P' c) * (s - m)) by lra.
    apply Rle_trans with (1 := Rabs_triang _ _), Rplus_le_compat; [exact H0|].
    rewrite Rabs_mult; apply Rmult_le_compat; try apply Rabs_pos; [exact H1|apply Rabs_le; lra].
Qed.

Fixpoint poly (l : list R) (x : R) : R := match l with [] => 0 | [a] => a | a :: l => a + x * poly l x end.
Fixpoint dpoly (l : list R) (x : R) : R := match l with [] => 0 | a :: l => poly l x + x * dpoly l x end.

Lemma poly_cons : forall a l x, poly (a :: l) x = a + x * poly l x.
Proof. intros a [|b l] x; simpl; ring. Qed.

Lemma poly_derive : forall l m t, is_derive (fun t => poly l (t - m)) t (dpoly l (t - m)).
Proof.
  induction l as [|a l IH]; intros m t; [exact (@is_derive_const R_AbsRing R_NormedModule 0 t)|].
  specialize (IH m t).
  assert (E : ex_derive (fun t => poly l (t - m)) t) by (eexists; exact IH).
  assert (D : Derive (fun t => poly l (t - m)) t = dpoly l (t - m)) by (apply is_derive_unique, IH).
  apply (is_derive_ext (fun t => a + (t - m) * poly l (t - m))); [intros u; symmetry; apply poly_cons|].
  cbn [dpoly]; set (g := fun t => poly l (t - m)) in *.
  change (is_derive (fun t => a + (t - m) * g t) t (g t + (t - m) * dpoly l (t - m))).
  auto_derive; [exact E|].
  replace (Derive (fun x => g x) t) with (dpoly l (t - m)) by (symmetry; exact D); ring.
Qed.

(* A polynomial that is near Phi on [a, b], from its value at the end a. *)
Lemma Phi_poly : forall l m a b e0 e1, a <= b -> Rabs (Phi a - poly l (a - m)) <= e0 ->
  (forall t, a <= t <= b -> Rabs (phi t - dpoly l (t - m)) <= e1) ->
  forall s, a <= s <= b -> Rabs (Phi s - poly l (s - m)) <= e0 + e1 * (b - a).
Proof.
  intros l m a b e0 e1 M H0 H1 s S.
  apply (by_derivative Phi (fun t => poly l (t - m)) phi (fun t => dpoly l (t - m)) a a b e0 e1 s); auto.
  - apply Phi_derive.
  - intros t; apply poly_derive.
  - lra.
Qed.

Lemma Phi_opp : forall s, Phi (- s) = 1 - Phi s.
Proof.
  intros s.
  assert (D : forall t, is_derive (fun t => Phi t + Phi (- t)) t 0).
  { intros t.
    assert (A : is_derive (fun t => Phi (- t)) t (- phi t)).
    { replace (- phi t) with (scal (- 1) (phi (- t))).
      - apply (is_derive_comp Phi Ropp); [apply Phi_derive|].
        auto_derive; [exact I|ring].
      - unfold scal; simpl; unfold mult; simpl; unfold phi; replace (- t * - t) with (t * t) by ring; ring. }
    replace 0 with (plus (phi t) (- phi t)) by (unfold plus; simpl; ring).
    apply (is_derive_plus Phi (fun t => Phi (- t))); [apply Phi_derive|exact A]. }
  destruct (MVT_gen (fun t => Phi t + Phi (- t)) 0 s (fun _ => 0)) as [c [_ E]].
  - intros t _; apply D.
  - intros t _; apply continuity_pt_filterlim, (ex_derive_continuous (fun t => Phi t + Phi (- t))); eexists; apply D.
  - rewrite Ropp_0, Phi_0 in E; lra.
Qed.

(* From cell to cell: the polynomial k up to a, then l. *)
Lemma Phi_next : forall k n l m x a b d0 j e d, x <= a <= b ->
  (forall s, x <= s <= a -> Rabs (Phi s - poly k (s - n)) <= d0) -> Rabs (poly k (a - n) - poly l (a - m)) <= j ->
  (forall t, a <= t <= b -> Rabs (phi t - dpoly l (t - m)) <= e) -> d0 + j + e * (b - a) <= d ->
  forall s, a <= s <= b -> Rabs (Phi s - poly l (s - m)) <= d.
Proof.
  intros k n l m x a b d0 j e d X H0 J H1 D s S; apply Rle_trans with (2 := D).
  apply (Phi_poly l m a b (d0 + j) e); try assumption; [lra|].
  replace (Phi a - poly l (a - m)) with ((Phi a - poly k (a - n)) + (poly k (a - n) - poly l (a - m))) by ring.
  apply Rle_trans with (1 := Rabs_triang _ _), Rplus_le_compat; [apply H0; lra|exact J].
Qed.

Lemma Phi_start : forall s, 0 <= s <= 0 -> Rabs (Phi s - poly [1 / 2] (s - 0)) <= 0.
Proof. intros s H; replace s with 0 by lra; rewrite Phi_0; simpl; rewrite Rminus_eq_0, Rabs_R0; lra. Qed.

Lemma Phi_left : forall s P d, Rabs (Phi (- s) - P) <= d -> Rabs (Phi s - (1 - P)) <= d.
Proof. intros s P d; rewrite Phi_opp, <- Rabs_Ropp; replace (- (1 - Phi s - P)) with (Phi s - (1 - P)) by ring; auto. Qed.

(* s * Phi s, from a number P that is near Phi s *)
Lemma gelu_near : forall y s P B e d eps, Rabs (Phi s - P) <= d -> Rabs s <= B ->
  Rabs (y - s * P) <= e -> e + B * d <= eps -> Rabs (y - s * Phi s) <= eps.
Proof.
  intros y s P B e d eps HP HB H E.
  replace (y - s * Phi s) with ((y - s * P) + - (s * (Phi s - P))) by ring.
  apply Rle_trans with (1 := Rabs_triang _ _), Rle_trans with (2 := E), Rplus_le_compat; [exact H|].
  rewrite Rabs_Ropp, Rabs_mult; apply Rmult_le_compat; auto using Rabs_pos.
Qed.

(** * Heads of two keys: functions of a quadratic form *)

(* A token attends to itself with the score intercept - slope * q and the value height; the other key has score and value 0. *)
Record pair := Pair { fall : Q; start : Q; height : Q }.

Definition two_keys (q : R) (t : pair) : R :=
  let z := Q2R (start t) - Q2R (fall t) * q in Q2R (height t) * (exp z / (exp z + exp 0)).
Definition quadratic (model : list pair) (q : R) : R := sum (two_keys q) model.

(* The same as a logistic function, and in a form that computes. *)
Definition logistic (q : R) (t : pair) : R := number (height t) / (1 + exp (line (fall t) (- start t) q)).

Lemma two_keys_logistic : forall q t, two_keys q t = logistic q t.
Proof.
  intros q t; unfold two_keys, logistic; cbv zeta; rewrite number_Q, line_Q, Q2R_opp, exp_0.
  replace (Q2R (fall t) * q + - Q2R (start t)) with (- (Q2R (start t) - Q2R (fall t) * q)) by ring.
  rewrite exp_Ropp; generalize (exp_pos (Q2R (start t) - Q2R (fall t) * q)); intros; field; lra.
Qed.

Definition ample (a gap : Q) (t : pair) : bool :=
  Qle_bool 0 (fall t) && Qle_bool 0 (height t) && Qle_bool gap (fall t * a - start t).
Definition heights (l : list pair) : Q := fold_right (fun t rest => height t + rest)%Q 0%Q l.

Lemma ample_small : forall a gap q t, Q2R a <= q -> ample a gap t = true ->
  0 <= two_keys q t <= Q2R (height t) * exp (- Q2R gap).
Proof.
  intros a gap q t H F; unfold ample in F.
  apply Bool.andb_true_iff in F; destruct F as [F G]; apply Bool.andb_true_iff in F; destruct F as [F P].
  apply Qle_bool_imp_le, Qle_Rle in F, P, G; rewrite RMicromega.Q2R_0 in F, P; rewrite Q2R_minus, Q2R_mult in G.
  unfold two_keys; cbv zeta; rewrite exp_0; set (z := Q2R (start t) - Q2R (fall t) * q).
  assert (Z : z <= - Q2R gap) by (unfold z; nra).
  assert (E : exp z <= exp (- Q2R gap)) by (destruct Z as [Z|Z]; [left; apply exp_increasing, Z|right; rewrite Z; reflexivity]).
  assert (0 < exp z) by apply exp_pos.
  assert (S : 0 <= exp z / (exp z + 1) <= exp z).
  { split; [apply Rlt_le, Rdiv_lt_0_compat; lra|].
    unfold Rdiv; rewrite <- (Rmult_1_r (exp z)) at 3; apply Rmult_le_compat_l; [lra|].
    rewrite <- Rinv_1; apply Rinv_le_contravar; lra. }
  split; [nra|]; apply Rmult_le_compat_l; lra.
Qed.

Lemma quadratic_near : forall model mask a gap q, Q2R a <= q -> forallb (ample a gap) (drop mask model) = true ->
  0 <= quadratic model q - quadratic (keep mask model) q <= Q2R (heights (drop mask model)) * exp (- Q2R gap).
Proof.
  intros model mask a gap q H F; unfold quadratic; rewrite (sum_split _ _ mask model).
  match goal with |- 0 <= ?x + ?y - ?x <= _ => replace (x + y - x) with y by ring end.
  induction (drop mask model) as [|t l IH]; simpl; [rewrite RMicromega.Q2R_0; lra|].
  simpl in F; apply Bool.andb_true_iff in F; destruct F as [F0 F]; specialize (IH F).
  generalize (ample_small a gap q t H F0); unfold heights in *; rewrite Q2R_plus; lra.
Qed.

Definition plan_pairs (mask : list bool) (model : list pair) : list pair :=
  map (fun t => Pair (Qred (fall t)) (Qred (start t)) (Qred (height t))) (keep mask model).
Definition planned_pairs (l : list pair) (q : R) : R := add (map (logistic q) l).

Lemma planned_pairs_Q : forall mask model q, planned_pairs (plan_pairs mask model) q = quadratic (keep mask model) q.
Proof.
  intros mask model q; unfold planned_pairs, plan_pairs, quadratic; rewrite add_sum, sum_map.
  rewrite <- (Rmult_1_l (sum (two_keys q) (keep mask model))); apply sum_scaled; intros t.
  rewrite <- !two_keys_logistic; unfold two_keys; cbn [fall start height]; rewrite !Q2R_red; ring.
Qed.

(* The relative error on [a, b] of the heads against 1 / r. *)
Theorem norm_stretch : forall model mask a b gap (r : R -> R) (B eps e : R),
  forallb (ample a gap) (drop mask model) = true ->
  (forall q, Q2R a <= q <= Q2R b -> 0 <= r q <= B) ->
  B * (Q2R (heights (drop mask model)) * exp (- Q2R gap)) + e <= eps ->
  (forall q, Q2R a <= q <= Q2R b -> Rabs (r q * planned_pairs (plan_pairs mask model) q - 1) <= e) ->
  forall q, Q2R a <= q <= Q2R b -> Rabs (r q * quadratic model q - 1) <= eps.
Proof.
  intros model mask a b gap r B eps e F Hr E P q H.
  specialize (Hr q H); specialize (P q H); rewrite planned_pairs_Q in P.
  assert (N := quadratic_near model mask a gap q (proj1 H) F).
  set (x := quadratic model q) in *; set (y := quadratic (keep mask model) q) in *.
  set (d := Q2R (heights (drop mask model)) * exp (- Q2R gap)) in *.
  replace (r q * x - 1) with ((r q * y - 1) + r q * (x - y)) by ring.
  apply Rle_trans with (1 := Rabs_triang _ _), Rle_trans with (2 := E); rewrite Rplus_comm.
  apply Rplus_le_compat; [|exact P]; rewrite Rabs_mult, !Rabs_pos_eq by lra; apply Rmult_le_compat; lra.
Qed.

Ltac explicit_pairs :=
  match goal with |- context [plan_pairs ?m ?l] => computed (plan_pairs m l) end;
  match goal with |- _ <= Q2R ?e => rewrite (constant e); computed (Qred e) end;
  cbv [planned_pairs add map logistic line times number Qnum Qden Qopp Z.opp fall start height].
Ltac small_pairs :=
  match goal with |- context [heights ?l] => computed (Qred (heights l)) || idtac end;
  constants; first [lra | interval with (i_prec 100)].

(** * Networks: affine maps and one function, exactly and with heads *)

(* A row of weights and its bias. *)
Definition dot (w : list Q) (x : list R) : R := sum (fun p => Q2R (fst p) * snd p) (combine w x).
Definition affine (rows : list (list Q * Q)) (x : list R) : list R := map (fun row => dot (fst row) x + Q2R (snd row)) rows.

Definition bounded (B : Q) (x : list R) : Prop := List.Forall (fun a => Rabs a <= Q2R B) x.
Definition close (e : Q) (x y : list R) : Prop := Forall2 (fun a b => Rabs (a - b) <= Q2R e) x y.

Definition mass (w : list Q) : Q := fold_right (fun a rest => Qred (Qabs.Qabs a + rest)) 0%Q w.
Definition rows_bounded (rows : list (list Q * Q)) (B C : Q) : bool :=
  Qle_bool 0 B && forallb (fun row => Qle_bool (mass (fst row) * B + Qabs.Qabs (snd row)) C) rows.
Definition rows_close (rows : list (list Q * Q)) (e d : Q) : bool :=
  Qle_bool 0 e && forallb (fun row => Qle_bool (mass (fst row) * e) d) rows.

Lemma mass_cons : forall a w, Q2R (mass (a :: w)) = Rabs (Q2R a) + Q2R (mass w).
Proof. intros a w; unfold mass; cbn [fold_right]; rewrite Q2R_red, Q2R_plus, Q2R_abs; reflexivity. Qed.

Lemma mass_nonneg : forall w, 0 <= Q2R (mass w).
Proof.
  intros w; induction w as [|a w IH]; [unfold mass; simpl; rewrite RMicromega.Q2R_0; lra|].
  rewrite mass_cons; generalize (Rabs_pos (Q2R a)); lra.
Qed.

Lemma dot_nil : forall x, dot [] x = 0.
Proof. intros x; reflexivity. Qed.
Lemma dot_none : forall w, dot w [] = 0.
Proof. intros [|a w]; reflexivity. Qed.
Lemma dot_cons : forall a w b x, dot (a :: w) (b :: x) = Q2R a * b + dot w x.
Proof. intros; reflexivity. Qed.

Lemma dot_bounded : forall w x B, 0 <= Q2R B -> bounded B x -> Rabs (dot w x) <= Q2R (mass w) * Q2R B.
Proof.
  intros w x B P H; assert (N : forall v, 0 <= Q2R (mass v) * Q2R B) by (intros v; generalize (mass_nonneg v); nra).
  revert w; induction H as [|a x A H IH]; intros [|c w]; rewrite ?dot_nil, ?dot_none, ?Rabs_R0; try apply N.
  rewrite dot_cons, mass_cons, Rmult_plus_distr_r; apply Rle_trans with (1 := Rabs_triang _ _), Rplus_le_compat; [|apply IH].
  rewrite Rabs_mult; apply Rmult_le_compat_l; [apply Rabs_pos|exact A].
Qed.

Lemma dot_close : forall w x y e, 0 <= Q2R e -> close e x y -> Rabs (dot w x - dot w y) <= Q2R (mass w) * Q2R e.
Proof.
  intros w x y e P H; assert (N : forall v, 0 <= Q2R (mass v) * Q2R e) by (intros v; generalize (mass_nonneg v); nra).
  revert w; induction H as [|a b x y A H IH]; intros [|c w]; rewrite ?dot_nil, ?dot_none, ?Rminus_0_r, ?Rabs_R0; try apply N.
  rewrite !dot_cons, mass_cons, Rmult_plus_distr_r.
  replace (Q2R c * a + dot w x - (Q2R c * b + dot w y)) with (Q2R c * (a - b) + (dot w x - dot w y)) by ring.
  apply Rle_trans with (1 := Rabs_triang _ _), Rplus_le_compat; [|apply IH].
  rewrite Rabs_mult; apply Rmult_le_compat_l; [apply Rabs_pos|exact A].
Qed.

Lemma affine_bounded : forall rows B C x, rows_bounded rows B C = true -> bounded B x -> bounded C (affine rows x).
Proof.
  intros rows B C x F H; unfold rows_bounded in F; apply Bool.andb_true_iff in F; destruct F as [P F].
  apply Qle_bool_imp_le, Qle_Rle in P; rewrite RMicromega.Q2R_0 in P.
  unfold bounded, affine; rewrite Forall_map; apply Forall_forall; intros row I.
  rewrite forallb_forall in F; specialize (F row I); apply Qle_bool_imp_le, Qle_Rle in F.
  rewrite Q2R_plus, Q2R_mult, Q2R_abs in F; apply Rle_trans with (1 := Rabs_triang _ _), Rle_trans with (2 := F).
  apply Rplus_le_compat_r, dot_bounded; assumption.
Qed.

Lemma affine_close : forall rows e d x y, rows_close rows e d = true -> close e x y -> close d (affine rows x) (affine rows y).
Proof.
  intros rows e d x y F H; unfold rows_close in F; apply Bool.andb_true_iff in F; destruct F as [P F].
  apply Qle_bool_imp_le, Qle_Rle in P; rewrite RMicromega.Q2R_0 in P.
  induction rows as [|row rows IH]; [apply Forall2_nil|]; simpl in F; apply Bool.andb_true_iff in F; destruct F as [F0 F].
  apply Forall2_cons; [|exact (IH F)].
  apply Qle_bool_imp_le, Qle_Rle in F0; rewrite Q2R_mult in F0; apply Rle_trans with (2 := F0).
  match goal with |- Rabs (?u + ?c - (?v + ?c)) <= _ => replace (u + c - (v + c)) with (u - v) by ring end.
  apply dot_close; assumption.
Qed.

Lemma close_refl : forall x, close 0 x x.
Proof.
  intros x; induction x as [|a x IH]; constructor; [|exact IH].
  rewrite Rminus_eq_0, Rabs_R0, RMicromega.Q2R_0; lra.
Qed.

(* A head h in place of f, which has the Lipschitz constant 1, where exact arguments are at most B and errors at most e. *)
Lemma head_close : forall (h f : R -> R) lo hi B e delta d x y,
  (forall s, Q2R lo <= s <= Q2R hi -> Rabs (h s - f s) <= Q2R delta) -> (forall a b, Rabs (f a - f b) <= Rabs (a - b)) ->
  Qle_bool (lo + B + e) 0 && Qle_bool (B + e) hi && Qle_bool (delta + e) d = true ->
  bounded B y -> close e x y -> close d (map h x) (map f y).
Proof.
  intros h f lo hi B e delta d x y H L F Y X.
  apply Bool.andb_true_iff in F; destruct F as [F D]; apply Bool.andb_true_iff in F; destruct F as [F G].
  apply Qle_bool_imp_le, Qle_Rle in F, G, D; rewrite !Q2R_plus in F; rewrite Q2R_plus in G, D; rewrite RMicromega.Q2R_0 in F.
  revert Y; induction X as [|a b x y A X IH]; intros Y; [apply Forall2_nil|].
  inversion_clear Y as [|? ? Yb Y']; apply Forall2_cons; [|exact (IH Y')].
  assert (I : Q2R lo <= a <= Q2R hi).
  { assert (Ra := Rabs_triang (a - b) b); replace (a - b + b) with a in Ra by ring.
    generalize (Rle_abs a) (Rle_abs (- a)); rewrite Rabs_Ropp; lra. }
  replace (h a - f b) with ((h a - f a) + (f a - f b)) by ring.
  apply Rle_trans with (1 := Rabs_triang _ _); specialize (H a I); specialize (L a b); lra.
Qed.

Lemma tanh_bounded : forall x, bounded 1 (map tanh x).
Proof.
  intros x; unfold bounded; rewrite Forall_map; apply Forall_forall; intros s _; rewrite tanh_left.
  replace (Q2R 1) with 1 by (unfold Q2R; simpl; field).
  assert (P := exp_pos (2 * s)); apply Rabs_le.
  assert (0 < 2 / (exp (2 * s) + 1) <= 2); [|lra].
  split; [apply Rdiv_lt_0_compat; lra|].
  unfold Rdiv; rewrite <- (Rmult_1_r 2) at 3; apply Rmult_le_compat_l; [lra|]; rewrite <- Rinv_1; apply Rinv_le_contravar; lra.
Qed.

Lemma tanh_lipschitz : forall a b, Rabs (tanh a - tanh b) <= Rabs (a - b).
Proof.
  intros a b; rewrite !tanh_left.
  pose (g := fun s => 1 - 2 / (exp (2 * s) + 1)); pose (g' := fun s => 4 * exp (2 * s) / ((exp (2 * s) + 1) * (exp (2 * s) + 1))).
  assert (D : forall t, is_derive g t (g' t)).
  { intros t; unfold g, g'; auto_derive; assert (P := exp_pos (2 * t)); [lra|field; lra]. }
  destruct (MVT_gen g b a g') as [c [_ E]].
  - intros t _; apply D.
  - intros t _; apply continuity_pt_filterlim, (ex_derive_continuous g); eexists; apply D.
  - unfold g in E; rewrite E, Rabs_mult; apply Rle_trans with (1 * Rabs (a - b)); [|rewrite Rmult_1_l; apply Rle_refl].
    apply Rmult_le_compat_r; [apply Rabs_pos|]; unfold g'; assert (P := exp_pos (2 * c)).
    rewrite Rabs_pos_eq by (apply Rlt_le, Rdiv_lt_0_compat; nra).
    apply Rmult_le_reg_r with ((exp (2 * c) + 1) * (exp (2 * c) + 1)); [nra|].
    unfold Rdiv; rewrite Rmult_assoc, Rinv_l by (apply Rgt_not_eq; nra).
    generalize (Rle_0_sqr (exp (2 * c) - 1)); unfold Rsqr; intros; lra.
Qed.
